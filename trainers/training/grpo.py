"""One side of a round, trained against the frozen snapshot of the other: GRPO by TRL's GRPOTrainer
(paper, section 2.3), through its public surface: configuration, a reward callable, a callback.

The reward callable turns completions into keyword sets and these into a reward of `cogr.rewards`.
It also counts the figures of the step log. An error while scoring stops the stage; it never becomes
a reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cogr.errors import CogrError, TrainingError
from cogr.keywords import over_budget, self_keyword
from cogr.prompts import chat
from cogr.records import Entity, Side, self_text
from cogr.rewards import Reward, World, load_reward
from indexers.generators.model_folders import encode
from trainers.training.building import keywords_of
from trainers.training.checkpoints import (
    TrainedModel,
    as_callback,
    base_folder,
    load_model,
    lora_config,
    stage_folder,
    train,
    trainable_tokenizer,
)
from trainers.training.inputs import Inputs
from trainers.training.step_log import StepLog
from trainers.training.trainer_config import Batch, grpo_config, grpo_step, set_up, silence


def prepare_grpo(inputs: Inputs, side: Side) -> tuple[Any, StepLog]:
    """TRL's trainer for a side in the round under way, and the log of its steps. Data order and
    rollouts of each round have a seed of their own.

    Raises TrainingError for a set-up that can't work.
    """
    from datasets import Dataset
    from trl import GRPOTrainer

    settings, model = inputs.settings, inputs.before.model(side)
    own = settings.query if side == "query" else settings.item
    items: Sequence[Entity] = inputs.workspace.dataset.items
    entities = items if side == "item" else inputs.train
    prompts = [*map(inputs.workspace.prompter(side), entities)]
    base = base_folder(inputs.run, model)
    seed = settings.seed + inputs.round.number
    set_up(seed)
    tokenizer = trainable_tokenizer(base)
    longest = max(len(encode(prompt, tokenizer)) for prompt in set(prompts))
    length = longest + settings.rollouts.max_tokens
    batch = Batch.of(settings, grpo_step(own, len(entities), settings), inputs.retries)
    learner = load_model(base, settings)
    log = StepLog(inputs.log(side), inputs.say, scored=True, whole=settings.rules == "paper")
    folder = stage_folder(inputs, side, prompts, base=model, items=inputs.before.items)
    rows = [
        {"prompt": chat(prompt, tokenizer), "entity": entity.id}
        for prompt, entity in zip(prompts, entities, strict=True)
    ]
    trainer = GRPOTrainer(
        model=learner,
        reward_funcs=_scorer(inputs, side, entities, _ends(learner, tokenizer)),
        args=grpo_config(own, settings, batch, folder, seed, length),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora_config(settings, base),
        callbacks=[as_callback(folder, log)],
    )
    silence(trainer)
    return trainer, log


def _scorer(
    inputs: Inputs, side: Side, entities: Sequence[Entity], ends: Collection[int]
) -> CompletionScorer:
    items = inputs.mirror(inputs.before.items)
    queries = inputs.mirror(inputs.round.queries) if side == "item" else None
    settings = inputs.settings
    return CompletionScorer(
        inputs.world(items, queries),
        load_reward((settings.query if side == "query" else settings.item).reward),
        {entity.id: self_keyword(self_text(entity)) for entity in entities},
        ends=ends,
        unfinished_is_over_budget=settings.rules != "paper",
    )


def _ends(model: Any, tokenizer: Any) -> set[int]:
    declared = model.generation_config.eos_token_id
    several = declared if isinstance(declared, list) else [declared]
    return {tokenizer.eos_token_id, *several} - {None}


def run_grpo(inputs: Inputs, side: Side) -> TrainedModel:
    """Train and return the model.

    Raises TrainingError for a set-up that can't work, a reward that fails, a loss that is NaN or
    infinite.
    """
    trainer, log = prepare_grpo(inputs, side)
    try:
        with log:
            train(trainer)
            log.keep_completions(Path(trainer.args.output_dir))
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise
        raise TrainingError(
            "The model gives probabilities that are not numbers: the training has diverged; lower "
            "the learning rate."
        ) from error
    return TrainedModel(trainer, {"prompts": len(trainer.train_dataset), **log.notes})


@dataclass(frozen=True)
class CompletionScorer:
    """Scores completions against a frozen world.

    Attributes:
        own: entity id -> its own text as a keyword.
        ends: token ids that end a completion.
        unfinished_is_over_budget: score a completion that was cut at the length limit as over the
            budget.
    """

    world: World
    reward: Reward
    own: Mapping[str, str]
    ends: Collection[int]
    unfinished_is_over_budget: bool

    __name__: ClassVar[str] = "retrieval"

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
        texts = [text_of(completion) for completion in completions]
        sets = [keywords_of(text, self.own[id_]) for text, id_ in zip(texts, entity, strict=True)]
        cut = [not ids or ids[-1] not in self.ends for ids in completion_ids]
        rewards = [self._score(*one) for one in zip(entity, sets, cut, strict=True)]
        shares: dict[str, Any] = {
            "over_budget": np.mean([over_budget(keywords, self.world.k_max) for keywords in sets]),
            "unfinished": np.mean(cut),
            "empty": np.mean([not keywords for keywords in sets]),
            "keywords": np.mean([len(keywords) for keywords in sets]),
        }
        for name, share in shares.items():
            log_metric(name, float(share))
        log_extra("entity", list(entity))
        return rewards

    @property
    def _too_many(self) -> tuple[str, ...]:
        """Stands for the set of a completion that was cut."""
        return tuple(f"keyword {number}" for number in range(self.world.k_max + 1))

    def _score(self, id_: str, keywords: Sequence[str], cut: bool) -> float:
        scored = self._too_many if cut and self.unfinished_is_over_budget else keywords
        try:
            reward = self.reward(self.world, id_, scored)
            if isinstance(reward, int | float) and math.isfinite(reward):
                return float(reward)
            reason = f"it returned {reward!r}, which is not a finite number"
        except CogrError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001  (a user's own reward may raise anything)
            reason = f"{type(error).__name__}: {error}"
        raise TrainingError(
            f"The reward failed on {id_!r} with the keywords {', '.join(scored)!r}: "
            f"{reason.rstrip('.')}."
        )


def text_of(completion: Any) -> str:
    """TRL gives plain text for plain prompts and messages for chat prompts."""
    parts = [{"content": completion}] if isinstance(completion, str) else completion
    return "".join(str(part.get("content") or "") for part in parts)
