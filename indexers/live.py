"""The model that answers queries which no query snapshot has: the fit of `statistical` that wrote
the serving one, another generator without a language model, or a language model at an endpoint.

It answers only for the pair that it belongs to, and nothing is ever fitted for it. In process, its
fingerprint must be that in the manifest of the serving query snapshot. At an endpoint, its name
tells the round where it contains {round}; otherwise the operator is responsible.
"""

from __future__ import annotations

from dataclasses import dataclass

from cogr.errors import ServiceError, SettingsError
from cogr.keywords import parse
from cogr.prompts import Prompter
from cogr.records import Query
from cogr.settings.indexing import kind_of
from cogr.snapshots import Manifest, Row, read_manifest
from indexers.backends import Pair
from indexers.generators import (
    Answer,
    Completion,
    Generator,
    Request,
    fingerprint_hash,
    make_generator,
    query_row,
)
from indexers.generators.statistical.generator import Statistical
from indexers.workspace import Workspace, generator_options

MODEL_SECONDS = 10.0
"""What a model may take for an answer: language models need seconds, and what comes after the
expander's deadline is cached for the next request.
"""


@dataclass(frozen=True)
class LiveModel:
    """A generator that writes the keywords of one query while somebody waits for them."""

    kind: str
    generator: Generator
    prompter: Prompter
    k_max: int

    def request(self, text: str) -> Request:
        """What the generator is asked about a folded text."""
        query = Query("search", text)
        return Request(query.id, query, self.prompter(query))

    def row(self, answer: Answer | None, text: str) -> Row | None:
        """The row of an answer; None where it has no keywords. Raises ServiceError where the model
        failed, and might not the next time.
        """
        if isinstance(answer, Completion):
            row = query_row(answer, Query(answer.id, text), parse(answer.text), self.k_max)
            return row if row.keywords or self.generator.reads == "entity" else None
        if answer is not None and not answer.permanent:
            raise ServiceError(f"The generator {self.kind} failed: {answer.reason}.")
        return None

    def answer(self, text: str) -> Row | None:
        """Keywords for one folded text, in the calling thread. Raises as `row`."""
        answers = self.generator.generate([self.request(text)])
        return self.row(next(iter(answers), None), text)


def live_model(workspace: Workspace, pair: Pair, name: str | None = None) -> LiveModel | None:
    """The model of `serving.live` for a pair; None where there is none.

    Args:
        name: of the model at an endpoint; that of the query side's settings by default.

    Raises:
        SettingsError: the model of these settings is not the one that wrote the query snapshot, or
            its fit is gone; or a model has no name.
        GeneratorError, MissingExtraError: as of `make_generator`.
    """
    side, live = pair.query or pair.item, workspace.settings.serving.live
    known = side is not None and side.snapshot in workspace.store.list("snapshots")
    manifest = read_manifest(workspace.store, side.snapshot) if side and known else None
    wrote = manifest and manifest.generator.get("kind")
    chosen = str(wrote) if wrote and live == "auto" else live
    if chosen in ("none", "auto"):
        return None
    kind = kind_of(chosen)
    if kind.model == "endpoint":
        generator = _at_endpoint(workspace, chosen, name, pair.round)
    elif kind.is_live and manifest:
        items = pair.item.snapshot if pair.item else None
        generator = _in_process(workspace, chosen, manifest, items)
    else:
        return None
    prompter = workspace.prompter("query", chosen)
    return LiveModel(chosen, generator, prompter, workspace.settings.keywords.k_max)


def _in_process(
    workspace: Workspace, kind: str, manifest: Manifest, items: str | None
) -> Generator:
    generator: Generator | None = workspace.generator("query", kind)
    if isinstance(generator, Statistical):
        generator = generator.live(manifest.generator, items)
    elif generator and fingerprint_hash(generator.fingerprint) != fingerprint_hash(
        manifest.generator
    ):
        generator = None
    if generator is None:
        raise SettingsError(
            f"The generator {kind} of this configuration is not the one that wrote {manifest.id}, "
            "or its fit is gone: other data, other options or another version; use the "
            "configuration that the snapshot was built with, or rebuild both sides."
        )
    return generator


def _at_endpoint(workspace: Workspace, kind: str, name: str | None, round_: int) -> Generator:
    name = name or workspace.settings.generator.of("query").model
    if name is None:
        raise SettingsError(
            f"The live generator is {kind}, but neither --model nor generator.model names its "
            "model."
        )
    named = {"model": name.replace("{round}", str(round_))}
    settings = workspace.generator_settings("query", kind).model_copy(update=named)
    once = {**generator_options(settings), "retries": 0, "timeout": MODEL_SECONDS}
    return make_generator(once, "query")
