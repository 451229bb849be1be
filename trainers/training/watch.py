"""The figures of a step's completions, and the watch over them: a policy that collapses is named,
then stopped.

Pure; what a trainer calls at each step is `steplog`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from cogr.errors import CheckFailedError
from cogr.progress import Say
from cogr.settings.training import WatchSettings
from trainers.training.scorer import Tally, commonest_share


def step_shares(tally: Tally, known: Collection[str]) -> dict[str, float]:
    """Means and shares of one step's completions."""
    count = max(1, len(tally.rewards))
    words = [word for _, keywords in tally.sets for word in keywords]
    return {
        "reward": float(np.mean(tally.rewards)) if tally.rewards else 0.0,
        "reward_std": float(np.std(tally.rewards)) if tally.rewards else 0.0,
        "equal_groups": tally.equal_groups / max(1, tally.groups),
        "over_budget": tally.over_budget / count,
        "unfinished": tally.unfinished / count,
        "empty": sum(not keywords for _, keywords in tally.sets) / count,
        "one_list": commonest_share(tally.sets),
        "keywords": len(words) / count,
        "new_keywords": sum(word not in known for word in words) / max(1, len(words)),
    }


_COLLAPSES = {
    "empty": "the lists are empty",
    "one_list": "all entities get one list",
    "over_budget": "the lists are over the budget",
    "unfinished": "the lists don't end before the length limit",
    "equal_groups": "all rewards of a group are equal, so that there is nothing to learn from",
}
_ADVICE = (
    "lower the learning rate, train SFT longer, or look at the prompts; the step log has the "
    "figures"
)


class Watch:
    """Names a collapse that lasts, and stops the stage when it goes on.

    Args:
        settings: from which share on it is one, after how many steps it is named, after how many
            the stage stops.
        say: where it is named.
    """

    def __init__(self, settings: WatchSettings, say: Say) -> None:
        self._settings = settings
        self._say = say
        self._permanent = dict.fromkeys(_COLLAPSES, 0)

    def see(self, step: int, shares: Mapping[str, float]) -> list[str]:
        """Look at one step's figures; the collapses that have lasted long enough to be named."""
        for name, what in _COLLAPSES.items():
            self._permanent[name] = (
                self._permanent[name] + 1 if shares[name] >= self._settings.share else 0
            )
            if self._permanent[name] == self._settings.steps:
                self._say(
                    f"step {step}: the policy is collapsing, {what} for {self._settings.steps} "
                    "steps"
                )
        return [name for name, steps in self._permanent.items() if steps >= self._settings.steps]

    def stop(self, step: int) -> None:
        """Raise CheckFailedError when a collapse has lasted for the patience."""
        for name, steps in self._permanent.items():
            if steps >= self._settings.patience:
                raise CheckFailedError(
                    f"The policy has collapsed: at step {step} {_COLLAPSES[name]}, for {steps} "
                    "steps in a row "
                    f"(training.watch.patience); {_ADVICE}."
                )
