"""GRPO of one side by TRL's GRPOTrainer, through its public surface: configuration, a reward
callable, a callback.

The paper's verl settings in TRL's words: one optimizer step on each batch of fresh rollouts
(num_iterations 1), no KL term (beta 0), token-mean loss (dapo), advantages normalised in the group,
constant learning rate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cogr.errors import TrainingError
from cogr.progress import Say
from cogr.prompts import Prompt
from cogr.rewards import World, load_reward
from cogr.settings.training import GrpoSettings, RolloutSettings, TrainingSettings
from trainers.training.answers import project_answers_only
from trainers.training.options import Batch, grpo_batch, lora_config, number_formats, quiet, silence
from trainers.training.prompting import rollout_prompt
from trainers.training.scorer import Scorer
from trainers.training.sft import Trained
from trainers.training.steplog import GrpoLog
from trainers.training.weights import load_model, trainable_tokenizer


@dataclass(frozen=True)
class GrpoJob:
    """One side's training in one round.

    Attributes:
        base: the model folder that it starts from.
        ids: of the entities, aligned with the prompts.
        own: entity id -> its own text as a keyword.
        world: what the rewards are computed against, frozen.
        known: keywords that the side's snapshot had before.
        side: the side's table of settings.
        halvings: how often the micro batch is halved, after running out of memory.
        log: step figures go there, as jsonl.
        seed: of data order and rollouts; each round has one of its own.
    """

    base: Path
    prompts: Sequence[Prompt]
    ids: Sequence[str]
    own: Mapping[str, str]
    world: World
    known: Collection[str]
    side: GrpoSettings
    settings: TrainingSettings
    halvings: int
    log: Path
    seed: int


@dataclass(frozen=True)
class Prepared:
    """A trainer that is ready to train, and its log."""

    trainer: Any
    log: GrpoLog
    prompts: int


def prepare_grpo(job: GrpoJob, say: Say) -> Prepared:
    """Load the model and set up TRL's trainer.

    Raises TrainingError for a set-up that can't work.
    """
    from datasets import Dataset
    from trl import GRPOTrainer

    batch = grpo_batch(
        job.side,
        len(job.ids),
        job.settings.rollouts.generations,
        job.settings.processes,
        job.halvings,
    )
    if batch.prompts < job.side.prompts_per_step:
        say(
            f"prompts_per_step is {job.side.prompts_per_step}, but there are {batch.prompts}: "
            "every step takes them all"
        )
    quiet()
    tokenizer = trainable_tokenizer(job.base, job.settings)
    model = load_model(job.base)
    scorer = _scorer(job, tokenizer, model)
    log = GrpoLog(job.log, scorer, job.known, job.settings.watch, say, job.settings.tensorboard)
    rows = [
        {"prompt": rollout_prompt(prompt, tokenizer), "entity": id_}
        for prompt, id_ in zip(job.prompts, job.ids, strict=True)
    ]
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=scorer,
        args=grpo_config(job, batch),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora_config(job.settings),
        callbacks=[log],
    )
    silence(trainer)
    project_answers_only(trainer.model, job.settings.rollouts.temperature)
    return Prepared(trainer, log, len(rows))


def run_grpo(job: GrpoJob, say: Say) -> Trained:
    """Train and return the model.

    Raises:
        TrainingError: a set-up that can't work, a reward that fails, a loss that is no number.
        CheckFailedError: the policy has collapsed.
    """
    prepared = prepare_grpo(job, say)
    try:
        with prepared.log:
            prepared.trainer.train()
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise
        raise TrainingError(
            "The model gives probabilities that are no numbers: the training has diverged; lower "
            "the learning rate, "
            "or set training.dtype to float32."
        ) from error
    return Trained(prepared.trainer, {"prompts": prepared.prompts, **prepared.log.notes})


def _scorer(job: GrpoJob, tokenizer: Any, model: Any) -> Scorer:
    declared = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])} - {
        None
    }
    return Scorer(
        job.world,
        load_reward(job.side.reward),
        job.own,
        ends=ends,
        generations=job.settings.rollouts.generations,
        unfinished_is_over_budget=job.settings.rollouts.unfinished_is_over_budget,
        failures=job.log.with_suffix(".failed.json"),
        keyword_price=job.side.keyword_price,
    )


def grpo_config(job: GrpoJob, batch: Batch) -> Any:
    """The trainer's configuration."""
    from trl import GRPOConfig

    settings, rollouts = job.settings, job.settings.rollouts
    return GRPOConfig(
        output_dir=str(job.log.parent / "trainer"),
        per_device_train_batch_size=batch.micro,
        gradient_accumulation_steps=batch.accumulate,
        num_generations=rollouts.generations,
        num_train_epochs=job.side.epochs,
        max_steps=job.side.max_steps or -1,
        learning_rate=job.side.learning_rate,
        lr_scheduler_type="constant",
        num_iterations=1,
        beta=0.0,
        loss_type="dapo",
        scale_rewards="group",
        temperature=rollouts.temperature,
        top_p=1.0,
        top_k=0,
        max_completion_length=rollouts.max_tokens,
        chat_template_kwargs={"enable_thinking": False},
        seed=job.seed,
        **_vllm(rollouts),
        **number_formats(settings),
    )


def _vllm(rollouts: RolloutSettings) -> dict[str, Any]:
    if rollouts.by == "transformers":
        return {"use_vllm": False}
    if rollouts.by == "vllm-colocate":
        return {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": rollouts.vllm_gpu_share,
            "vllm_enable_sleep_mode": True,
        }
    if not rollouts.vllm_url:
        raise TrainingError(
            "training.rollouts.by is vllm-server, but training.rollouts.vllm_url is not set; "
            "start one with trl vllm-serve and name its address."
        )
    return {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": rollouts.vllm_url}
