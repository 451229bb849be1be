"""One side of a round: GRPO by TRL's GRPOTrainer (paper, section 2.3), through its public surface:
configuration, a reward callable, a callback.

The reward callable turns completions into keyword sets and these into a reward of `cogr.rewards`.
It also counts the figures of the step log. An error while scoring stops the stage, and is saved
with the completions being scored; it never becomes a reward.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cogr.errors import CogrError, TrainingError
from cogr.keywords import over_budget
from cogr.prompts import Prompt, chat
from cogr.records import Say, Side
from cogr.rewards import Reward, World, load_reward
from cogr.settings.training import GrpoSettings, TrainingSettings
from indexers.generators.model_folders import encode
from trainers.training.building import keywords_of, own_keyword, prompts_of
from trainers.training.checkpoints import (
    Trained,
    as_saver,
    base_folder,
    load_model,
    lora_config,
    save_side,
    stage_folder,
    train,
    trainable_tokenizer,
)
from trainers.training.inputs import Inputs, Wrote
from trainers.training.memory import Batch
from trainers.training.step_log import StepLog, as_callback
from trainers.training.trainer_config import (
    grpo_config,
    grpo_step,
    set_up,
    silence,
)


@dataclass(frozen=True)
class GrpoJob:
    """One side's training in one round.

    Attributes:
        own: entity id -> its own text as a keyword.
        known: keywords that the side's snapshot had before.
        folder: of its checkpoints.
        halvings: how often the micro batch is halved, after running out of memory.
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
    folder: Path


def train_grpo(inputs: Inputs, side: Side) -> Wrote:
    """One side trained against the frozen snapshot of the other."""
    return save_side(inputs, side, run_grpo(grpo_job(inputs, side), inputs.say))


def grpo_job(inputs: Inputs, side: Side) -> GrpoJob:
    """The job of a side in the round under way."""
    entities = inputs.workspace.dataset.items if side == "item" else inputs.train
    items = inputs.mirror(inputs.before.items)
    queries = inputs.mirror(inputs.round.queries) if side == "item" else None
    known = inputs.snapshot(inputs.before.queries if side == "query" else inputs.before.items)
    prompts, base = prompts_of(inputs.workspace, side, entities), inputs.model_before(side)
    return GrpoJob(
        base=base_folder(inputs.run, base),
        prompts=prompts,
        ids=[entity.id for entity in entities],
        own={entity.id: own_keyword(entity) for entity in entities},
        world=inputs.world(items, queries),
        known={word for row in known.rows() for word in row.keywords},
        side=inputs.settings.query if side == "query" else inputs.settings.item,
        settings=inputs.settings,
        halvings=inputs.halvings,
        log=inputs.log(side),
        seed=inputs.settings.seed + inputs.round.number,
        folder=stage_folder(inputs, side, prompts, base=base, items=inputs.before.items),
    )


def prepare_grpo(job: GrpoJob, say: Say) -> tuple[Any, StepLog]:
    """Load the model and set up TRL's trainer, and the log of its steps.

    Raises TrainingError for a set-up that can't work.
    """
    from datasets import Dataset

    prompts, share = grpo_step(job.side, len(job.ids), job.settings)
    if prompts < job.side.prompts_per_step:
        say(
            f"prompts_per_step is {job.side.prompts_per_step}, but there are {prompts}: every step "
            "takes them all"
        )
    set_up(job.seed)
    tokenizer = trainable_tokenizer(job.base)
    longest = max(len(encode(prompt, tokenizer)) for prompt in set(job.prompts))
    lengths = (longest, job.settings.rollouts.max_tokens)
    batch = Batch.of(job.settings, share, lengths, job.halvings)
    model = load_model(job.base, job.settings)
    declared = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])}
    paper = job.settings.rules == "paper"
    scorer = CompletionScorer(
        job.world,
        load_reward(job.side.reward),
        job.own,
        job.known,
        ends=ends - {None},
        unfinished_is_over_budget=not paper,
        failures=job.log.with_suffix(".failed.json"),
    )
    log = StepLog(job.log, say, scored=True, whole=paper)
    rows = [
        {"prompt": chat(prompt, tokenizer), "entity": id_}
        for prompt, id_ in zip(job.prompts, job.ids, strict=True)
    ]
    trainer = _learner()(
        model=model,
        reward_funcs=scorer,
        args=grpo_config(job.side, job.settings, batch, job.folder, job.seed, sum(lengths)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora_config(job.settings, job.base),
        callbacks=[as_callback(log), as_saver(job.folder)],
    )
    silence(trainer)
    return trainer, log


def _learner() -> Any:
    """TRL's trainer, which in one process computes nothing for groups with equal rewards: without
    a KL term their gradients are 0. TRL has no option for it. The loss is divided by the tokens of
    all groups, as before.
    """
    from trl import GRPOTrainer

    class Learner(GRPOTrainer):  # type: ignore[misc]
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            useful = inputs["advantages"] != 0
            # Processes gather figures of as many rows each.
            alone = self.accelerator.num_processes == 1 and not self.beta
            if alone and 0 < useful.sum() < len(useful):
                rows = useful.shape
                inputs = {
                    name: value[useful] if getattr(value, "shape", ())[:1] == rows else value
                    for name, value in inputs.items()
                }
            return super()._compute_loss(model, inputs)

    return Learner


def run_grpo(job: GrpoJob, say: Say) -> Trained:
    """Train and return the model.

    Raises:
        TrainingError: a set-up that can't work, a reward that fails, a loss that is NaN or
            infinite.
        CheckFailedError: the policy has collapsed.
    """
    trainer, log = prepare_grpo(job, say)
    try:
        with log:
            train(trainer)
            log.keep_completions(job.folder)
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise
        raise TrainingError(
            "The model gives probabilities that are not numbers: the training has diverged; lower "
            "the learning rate, or set training.dtype to float32."
        ) from error
    return Trained(trainer, {"prompts": len(job.ids), **log.notes})


class CompletionScorer:
    """Scores completions against a frozen world; `seconds` is what that took so far.

    Args:
        ends: token ids that end a completion.
        unfinished_is_over_budget: score a completion that was cut at the length limit as over the
            budget.
        failures: file for the completions being scored when scoring fails.
    """

    def __init__(
        self,
        world: World,
        reward: Reward,
        own: Mapping[str, str],
        known: Collection[str],
        *,
        ends: Collection[int],
        unfinished_is_over_budget: bool,
        failures: Path,
    ) -> None:
        self.__name__ = "retrieval"
        self.world = world
        self.seconds = 0.0
        self._reward = reward
        self._own, self._known = own, known
        self._ends = frozenset(ends)
        self._strict = unfinished_is_over_budget
        self._failures = failures
        # A set over any budget, as which unfinished completions are scored.
        self._too_many = tuple(f"keyword {number}" for number in range(world.k_max + 1))

    def __call__(
        self,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        entity: Sequence[str],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[str]], None],
        **_: object,
    ) -> list[float]:
        """One reward a completion, in order. TRL calls this once a step on every process, and
        averages the metrics over them.
        """
        began = time.perf_counter()
        texts = [text_of(completion) for completion in completions]
        sets = [keywords_of(text, self._own[id_]) for text, id_ in zip(texts, entity, strict=True)]
        cut = [not ids or ids[-1] not in self._ends for ids in completion_ids]
        rewards = [self._score(*one) for one in zip(entity, texts, sets, cut, strict=True)]
        words = [word for keywords in sets for word in keywords]
        shares: dict[str, Any] = {
            "over_budget": np.mean([over_budget(keywords, self.world.k_max) for keywords in sets]),
            "unfinished": np.mean(cut),
            "empty": np.mean([not keywords for keywords in sets]),
            "keywords": len(words) / len(sets),
            "new_keywords": sum(word not in self._known for word in words) / max(1, len(words)),
        }
        for name, share in shares.items():
            log_metric(name, float(share))
        log_extra("entity", list(entity))
        self.seconds += time.perf_counter() - began
        return rewards

    def _score(self, id_: str, text: str, keywords: Sequence[str], cut: bool) -> float:
        scored = self._too_many if cut and self._strict else keywords
        try:
            reward = self._reward(self.world, id_, scored)
        except CogrError as error:
            raise self._failed(id_, text, scored, str(error)) from error
        except Exception as error:
            # A user's own reward may raise anything; its input helps more than the error's type.
            raise self._failed(id_, text, scored, f"{type(error).__name__}: {error}") from error
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise self._failed(
                id_, text, scored, f"it returned {reward!r}, which is not a finite number"
            )
        return float(reward)

    def _failed(self, id_: str, text: str, keywords: Sequence[str], reason: str) -> TrainingError:
        record = {"entity": id_, "completion": text, "keywords": list(keywords), "error": reason}
        self._failures.write_text(json.dumps(record, ensure_ascii=False, indent=1), "utf-8")
        return TrainingError(
            f"The reward failed on {id_!r} ({reason.rstrip('.')}); what was being scored is in "
            f"{self._failures}."
        )


def text_of(completion: Any) -> str:
    """TRL gives plain text for plain prompts and messages for chat prompts."""
    return (
        completion
        if isinstance(completion, str)
        else "".join(str(m.get("content") or "") for m in completion)
    )
