"""The reward callable that GRPOTrainer is given: completions -> keyword sets -> a reward of
`cogr.rewards`.

It also counts what the step log shows. An error while scoring is saved with what was being scored,
and stops the stage; it never becomes a number.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cogr.errors import CogrError, TrainingError
from cogr.keywords import over_budget
from cogr.rewards import Reward, World
from trainers.training.prompting import keywords_of


@dataclass
class Tally:
    """What one step's completions were like."""

    started: float = 0.0
    ended: float = 0.0
    tokens: int = 0
    rewards: list[float] = field(default_factory=list)
    sets: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    over_budget: int = 0
    unfinished: int = 0
    equal_groups: int = 0
    groups: int = 0


class Scorer:
    """Scores completions against a frozen world.

    Args:
        world: what the reward is computed against.
        reward: (world, entity id, keywords) -> reward.
        own: entity id -> its own text as a keyword.
        ends: token ids that end a completion.
        generations: completions a prompt.
        unfinished_is_over_budget: score a completion that was cut at the length limit as over the
            budget.
        failures: where what was being scored is saved when scoring fails.
        keyword_price: taken from the reward for each keyword.
    """

    def __init__(
        self,
        world: World,
        reward: Reward,
        own: Mapping[str, str],
        *,
        ends: Collection[int],
        generations: int,
        unfinished_is_over_budget: bool,
        failures: Path,
        keyword_price: float = 0.0,
    ) -> None:
        self.__name__ = "retrieval"
        self.world = world
        self.tally = Tally()
        self._reward = reward
        self._own = own
        self._ends = frozenset(ends)
        self._generations = generations
        self._strict = unfinished_is_over_budget
        self._failures = failures
        self._price = keyword_price
        # A set that is over any budget: what unfinished completions are scored as.
        self._too_many = tuple(f"keyword {number}" for number in range(world.k_max + 1))

    def __call__(
        self,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        entity: Sequence[str],
        **_: object,
    ) -> list[float]:
        """One reward a completion, in order. TRL calls this once a step on every process."""
        tally = self.tally = Tally(started=time.perf_counter())
        for completion, ids, id_ in zip(completions, completion_ids, entity, strict=True):
            tally.rewards.append(self._score(tally, _text(completion), ids, id_))
        self._count_groups(tally)
        tally.ended = time.perf_counter()
        return tally.rewards

    def _score(self, tally: Tally, text: str, ids: Sequence[int], id_: str) -> float:
        keywords = keywords_of(text, self._own[id_])
        finished = bool(ids) and ids[-1] in self._ends
        tally.tokens += len(ids)
        tally.unfinished += not finished
        tally.over_budget += over_budget(keywords, self.world.k_max)
        tally.sets.append((id_, keywords))
        scored = keywords if finished or not self._strict else self._too_many
        try:
            reward = self._reward(self.world, id_, scored)
        except CogrError as error:
            raise self._failed(id_, text, scored, str(error)) from error
        except Exception as error:
            # A reward of the user's own may raise anything; what it was given is worth more than
            # its type.
            raise self._failed(id_, text, scored, f"{type(error).__name__}: {error}") from error
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise self._failed(
                id_, text, scored, f"it returned {reward!r}, which is no finite number"
            )
        return float(reward) - self._price * len(keywords)

    def _failed(self, id_: str, text: str, keywords: Sequence[str], reason: str) -> TrainingError:
        record = {"entity": id_, "completion": text, "keywords": list(keywords), "error": reason}
        self._failures.write_text(json.dumps(record, ensure_ascii=False, indent=1), "utf-8")
        return TrainingError(
            f"The reward failed on {id_!r} ({reason.rstrip('.')}); what was being scored is in "
            f"{self._failures}."
        )

    def _count_groups(self, tally: Tally) -> None:
        size = self._generations
        groups = [tally.rewards[at : at + size] for at in range(0, len(tally.rewards), size)]
        tally.groups = len(groups)
        tally.equal_groups = sum(max(group) - min(group) < 1e-12 for group in groups)


def commonest_share(sets: Sequence[tuple[str, tuple[str, ...]]]) -> float:
    """Largest share of entities that got the same non-empty set at least once; 1 is one list for
    all.
    """
    entities = {id_ for id_, _ in sets}
    seen = Counter(words for _, words in {(id_, frozenset(words)) for id_, words in sets} if words)
    return max(seen.values(), default=0) / len(entities) if len(entities) > 1 else 0.0


def _text(completion: Any) -> str:
    """TRL gives plain text for plain prompts and messages for chat prompts."""
    return (
        completion
        if isinstance(completion, str)
        else "".join(str(m.get("content") or "") for m in completion)
    )
