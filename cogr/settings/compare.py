"""The table `[compare]`: the budget that every method of `cogr-train compare` has, and the models
that some of them start from.

What they do is in `trainers.rivals`.
"""

from __future__ import annotations

from pydantic import Field

from cogr.settings.table import LONGEST, Table


class CompareSettings(Table):
    """How methods are compared. The budget is the same for all of them, ours too."""

    models: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Method -> what it starts from: a model folder or a Hugging Face name, such as "
            'splade = "naver/splade_v2_max"'
        ),
    )
    trials: int = Field(
        8, ge=1, description="Sets of hyperparameters that a method may try; the best on dev is run"
    )
    seconds: float = Field(
        600.0,
        gt=0,
        le=LONGEST,
        description="Wall time for all trials of one method; no new trial begins after it",
    )
