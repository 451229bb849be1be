"""The base of every table of settings: unknown keys are errors, defaults are checked too."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """One table of the configuration."""

    model_config = ConfigDict(extra="forbid", validate_default=True)
