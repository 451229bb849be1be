"""The generator that a worker holds: made for the first shard, kept for the next ones, changed when
a shard wants another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cogr.errors import GeneratorError
from cogr.settings import GeneratorSettings
from indexers.build.cache import fingerprint_hash
from indexers.fleet.records import Run
from indexers.generators.protocol import Generator
from indexers.generators.registry import make_generator
from indexers.workspace import Workspace, generator_options

READS_COLLECTION = ("extractive", "statistical")
ONE_PER_PROCESS = {"vllm"}
"""Kinds whose memory is free again only when their process has ended."""
_TOLD = {
    "name",
    "model",
    "adapter",
    "dtype",
    "max_model_len",
    "sampling",
    "scripted",
    "statistical",
}
_ELSEWHERE = {"endpoint"}
"""Of a fingerprint: where a generator finds what the run names, which is each worker's
own affair.
"""


def told(settings: GeneratorSettings) -> dict[str, Any]:
    """What a run says of its generator: all that decides its output, and no secret, path of a
    server or size of a GPU.
    """
    return settings.model_dump(mode="json", include=_TOLD)


def as_told(own: GeneratorSettings, run: Mapping[str, Any]) -> GeneratorSettings:
    """This worker's settings with what a run says put over them."""
    known = {name: value for name, value in run.items() if name in _TOLD}
    return GeneratorSettings.model_validate({**own.model_dump(), **known})


class EngineHeldError(Exception):
    """The engine that is held can only be changed by a new process."""


class Engines:
    """Holds at most one generator at a time.

    Args:
        workspace: the worker's own configuration: keys, endpoints, sizes.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._held: Generator | None = None
        self._name = ""

    def get(self, run: Run) -> Generator:
        """The generator of a run.

        The worker's own settings are tried first, since its model may lie elsewhere; what counts is
        the fingerprint, less the place of an endpoint.

        Raises:
            GeneratorError: this worker's generator would write something else than the run's; the
                message says where they differ.
            CogrError: it can't be made here.
            EngineHeldError: this process has to end first.
        """
        wanted = run.fingerprint_hash
        if self._held is not None and self._name == wanted:
            return self._held
        if self._held is not None and self._held.fingerprint.get("kind") in ONE_PER_PROCESS:
            raise EngineHeldError
        self.close()
        differs = ""
        for settings in self._candidates(run):
            generator = self._make(run, settings)
            if _deciding(generator.fingerprint) == _deciding(run.fingerprint):
                self._held, self._name = generator, wanted
                return generator
            differs = _difference(run.fingerprint, generator.fingerprint)
            generator.close()
        raise GeneratorError(f"This worker's generator is not the one of the rebuild: {differs}.")

    def close(self) -> None:
        """Free what is held."""
        if self._held is not None:
            self._held.close()
        self._held, self._name = None, ""

    def _candidates(self, run: Run) -> list[GeneratorSettings]:
        own = self._workspace.settings.generator.of(run.side)
        asked = as_told(own, run.generator)
        return [own, asked] if own.name == asked.name and own != asked else [asked]

    def _make(self, run: Run, settings: GeneratorSettings) -> Generator:
        dataset = self._workspace.dataset if settings.name in READS_COLLECTION else None
        # Which item snapshot queries are written for is the coordinator's choice; it is part of the
        # fingerprint.
        vocabulary, k_max = run.fingerprint.get("vocabulary"), int(run.fingerprint.get("k_max", 30))
        return make_generator(
            generator_options(settings, vocabulary, k_max), run.side, dataset, self._workspace.store
        )


def _deciding(fingerprint: Mapping[str, Any]) -> str:
    """Stands for all that decides what a generator writes, wherever it is."""
    return fingerprint_hash(
        {key: value for key, value in fingerprint.items() if key not in _ELSEWHERE}
    )


def _difference(wanted: Mapping[str, Any], have: Mapping[str, Any]) -> str:
    keys = {*wanted, *have} - _ELSEWHERE
    differing = sorted(key for key in keys if str(wanted.get(key)) != str(have.get(key)))
    return ", ".join(
        f"{key} is {have.get(key)!r} here and {wanted.get(key)!r} there" for key in differing
    )
