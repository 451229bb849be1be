"""The objects that the settings name (store, data set, generators, backend), opened at first use.
Shared by all commands.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cogr.datasets import LOADERS, load_dataset
from cogr.datasets.builder import DatasetOptions
from cogr.datasets.fields import Columns
from cogr.datasets.reading import use_encoding
from cogr.errors import MissingExtraError, SettingsError, SnapshotError
from cogr.prompts import Cut, Prompter, cut_by_estimate, cut_by_tokenizer
from cogr.records import Dataset, Side
from cogr.settings import Settings, load_settings
from cogr.settings.indexing import (
    KINDS,
    EndpointSettings,
    GeneratorSettings,
    Sampling,
    kind_of,
)
from cogr.snapshots import Snapshot, list_snapshots, open_snapshot
from cogr.store import Store
from indexers.generators.statistical import MIN_QUERIES

if TYPE_CHECKING:
    from indexers.backends import Backend
    from indexers.generators import Generator


@dataclass(frozen=True)
class GeneratorChoice:
    """A generator's name, and the reason for the choice."""

    name: str
    why: str


class Workspace:
    """One configuration and the objects that it names."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @classmethod
    def open(cls, config: Path | None, overrides: Sequence[str] = ()) -> Workspace:
        """From a configuration file and `--set` values. Raises SettingsError."""
        settings = load_settings(config, overrides)
        use_encoding(settings.dataset.encoding)
        return cls(settings)

    @cached_property
    def store(self) -> Store:
        return Store(self.settings.store)

    @cached_property
    def dataset(self) -> Dataset:
        asked = self.settings.dataset
        return load_dataset(asked.loader, asked.path, self.reading)

    @property
    def reading(self) -> DatasetOptions:
        """The options for reading records of the data set, also for later ones."""
        asked, loader = self.settings.dataset, LOADERS.get(self.settings.dataset.loader)
        return DatasetOptions(
            threshold=asked.threshold,
            dev_share=asked.dev_share,
            fields=self.settings.publish.fields,
            pair_signals=self.settings.generator.statistical.pair_signals,
            columns=Columns(**asked.columns.model_dump()),
            strip_html=loader is not None and loader.own,
            split_by=asked.split_by,
        )

    def with_dataset(self, dataset: Dataset) -> Workspace:
        """The same workspace with another data set; opened objects are shared."""
        other = copy.copy(self)
        other.__dict__["dataset"] = dataset
        return other

    @cached_property
    def backend(self) -> Backend:
        from indexers.backends import open_backend

        return open_backend(self.settings, self.store)

    def into(self, index: str) -> Workspace:
        """The same workspace with another `serving.into.index`."""
        settings = self.settings.model_copy(deep=True)
        settings.serving.into.index = index
        return Workspace(settings)

    def prompter(self, side: Side, name: str | None = None) -> Prompter:
        """The prompter of one side, for the generator of that name (that of the settings when
        None).
        """
        return Prompter(self.settings.prompts.template(side), cut=self._cut(side, name))

    def _cut(self, side: Side, name: str | None) -> Cut:
        chosen = self.settings.generator.of(side)
        kind = KINDS.get(name or chosen.name)
        if kind is None or kind.model != "process" or chosen.model is None:
            return cut_by_estimate
        from indexers.generators.model_folders import resolve_model, shared_tokenizer, with_base

        base, _ = with_base(chosen.model)
        return cut_by_tokenizer(shared_tokenizer(resolve_model(base)))

    def generator_settings(self, side: Side, name: str | None = None) -> GeneratorSettings:
        """The generator's settings of one side, with `auto` resolved.

        Raises MissingExtraError as `choice` does.
        """
        chosen = self.settings.generator.of(side)
        return GeneratorSettings.model_validate(
            {**chosen.model_dump(), "name": self.choice(side, name).name}
        )

    def choice(self, side: Side, name: str | None = None) -> GeneratorChoice:
        """The generator of a side, and the reason. `auto` is `statistical` where enough training
        queries have labels, else `extractive`.

        Raises:
            MissingExtraError: auto, and the data has labels, but the extra `statistical` is not
                installed.
        """
        wanted = name or self.settings.generator.of(side).name
        if wanted != "auto":
            return GeneratorChoice(
                wanted, "asked for by name" if name else f"generator.name of the {side} side"
            )
        labelled = sum(
            bool(self.dataset.relevant.get(query.id))
            for query in self.dataset.queries.get("train", ())
        )
        if labelled < MIN_QUERIES:
            return GeneratorChoice(
                "extractive",
                f"auto: {labelled} training queries have labels, statistical needs {MIN_QUERIES}",
            )
        if not KINDS["statistical"].is_installed:
            raise MissingExtraError(
                f'{labelled} training queries have labels, so generator.name = "auto" means '
                "statistical (extractive would not "
                "learn from them), which",
                "statistical",
            )
        return GeneratorChoice("statistical", f"auto: {labelled} training queries have labels")

    def generator(self, side: Side, name: str | None = None) -> Generator:
        """The generator of one side. Raises GeneratorError, MissingExtraError, ServiceError."""
        from indexers.generators import make_generator

        options = generator_options(self.generator_settings(side, name))
        return make_generator(options, side, self.dataset, self.store)

    def serving(self, side: Side) -> Snapshot:
        """The snapshot that serves. Raises SnapshotError when there is none."""
        id_ = self.backend.serving().get(side)
        if id_ is None:
            raise SnapshotError(
                f"No {side} snapshot serves yet: run cogr-index rebuild --side {side}."
            )
        return open_snapshot(self.store, id_)

    def snapshot(self, id_: str | None, side: Side) -> Snapshot:
        """The snapshot with that id, or the newest of its side. Raises SnapshotError."""
        if id_ is not None:
            return open_snapshot(self.store, id_)
        known = list_snapshots(self.store, side)
        if not known:
            raise SnapshotError(
                f"The store {self.store.url} has no {side} snapshot: run cogr-index rebuild "
                f"--side {side}."
            )
        return open_snapshot(self.store, known[-1].id)


def generator_options(settings: GeneratorSettings) -> dict[str, Any]:
    """The options of a kind of generator, for its module.

    Args:
        settings: of one side, with `auto` resolved.

    Raises:
        SettingsError: an option that the kind needs is not set.
    """
    name, kind = settings.name, kind_of(settings.name)
    table: Any = getattr(settings, name, {})
    own: dict[str, Any] = {"kind": name}
    own |= {"sampling": settings.sampling.model_dump()} if kind.model else {}
    if kind.model and settings.model is None:
        raise SettingsError(
            f"The generator {name} needs generator.model; set it in the configuration or by --set."
        )
    if kind.model == "process":
        own |= _model(settings)
        return own | ({"engine": table} if table else {})
    if kind.model == "endpoint":
        return own | {"model": settings.model, **_endpoint(name, table)}
    own |= dict(table)
    if judge := own.get("judge"):
        own["judge"] = generator_options(judging(settings, str(judge)))
    return own


def judging(settings: GeneratorSettings, kind: str) -> GeneratorSettings:
    """The settings of a judge: a generator of that kind, which answers greedily."""
    return settings.model_copy(update={"name": kind, "sampling": JUDGING})


def _model(settings: GeneratorSettings) -> dict[str, Any]:
    from indexers.generators.model_folders import with_base

    base, adapter = with_base(settings.model or "")
    return {"model": base, "adapter": adapter}


def _endpoint(name: str, table: EndpointSettings) -> dict[str, Any]:
    """The table with the variables that the client library reads, such as OPENAI_BASE_URL, in
    place of what is not set.
    """
    variables = {key: f"{name}_{key}".upper() for key in ("base_url", "api_key")}
    given = {key: os.environ.get(variable) or None for key, variable in variables.items()}
    given |= {key: value for key, value in table if value is not None}
    if given["base_url"] is None:
        raise SettingsError(
            f"The generator {name} needs generator.{name}.base_url; set it in the configuration, "
            f"by --set or by {variables['base_url']}."
        )
    return given


JUDGING = Sampling(temperature=0.0, top_p=1.0, top_k=0, max_tokens=48)
"""Greedy decoding; long enough for a model that adds a few words to a grade."""
