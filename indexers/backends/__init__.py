"""The protocol of a search backend, and checks that all backends share. `memory` is the mirror
itself; `opensearch` is a cluster.

Every backend gives the same retrieved sets, the same scores (bit for bit) and the same order; only
OpenSearch 2.x multiplies every score by (k1 + 1). Callers pass normalised keywords; repeated ones
count once, and a mapping gives each its weight. Backends raise SnapshotError for a snapshot that is
not pushed or does not serve, CheckFailedError for a difference, and ServiceError for a cluster that
can't be reached or refuses.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from cogr.errors import ServiceError
from cogr.records import Advance, FieldValue, Side
from cogr.settings import Settings
from cogr.snapshots import Manifest, Row, Snapshot, why_no_pair
from cogr.snapshots.texts import whole_texts
from cogr.snapshots.writing import HEAVIEST
from cogr.store import Store
from indexers.text import detect_language

Keywords = Sequence[str] | Mapping[str, float]
"""The query of a search: normalised keywords, or keyword -> weight, above 0."""


def boosts_of(keywords: Keywords) -> dict[str, float]:
    """Keyword -> weight, each once, in order; 1 where none is given."""
    if isinstance(keywords, Mapping):
        return dict(keywords)
    return dict.fromkeys(keywords, 1.0)


Tier = Literal["set", "more"]
NAMED_BOOST = 256.0
"""Score of an item beside that of keywords and text where the query is its id or part number."""
TEXT_BOOST = 0.2
"""Weight of a text's score beside weighted keywords, where an item of probability 1 scores 10."""


def text_boost(weights: Collection[float], chosen: float | Literal["auto"] = "auto") -> float:
    """The weight of a query's text beside keywords of these weights; without weights both are plain
    BM25 and count the same. `chosen` is the setting `serving.blend`.
    """
    if chosen == "auto":
        return TEXT_BOOST if weights else 1.0
    return chosen


@dataclass(frozen=True, slots=True)
class Words:
    """A query's text, searched beside its keywords, and in `also` what it reads as by a merchant's
    rules.

    Items that have every word of one of these texts in one field belong to the set; others with
    some of the words follow as `more`. The best score of a text over the items' texts, times
    `boost`, is added to the keywords'.
    """

    text: str
    boost: float = 1.0
    also: tuple[str, ...] = ()

    @property
    def texts(self) -> list[str]:
        """What is searched, the query's own text first."""
        return [text.strip()[:MAX_TEXT] for text in (self.text, *self.also)]


@dataclass(frozen=True, slots=True)
class Hit:
    """One retrieved entity. `score` is a float32 value; `matched` maps each matching keyword to its
    part of the score, and `words` is the text search's part.

    `fields` are an item's extra fields, as the snapshot has them. `tier` says whether the entity
    belongs to the set or follows by its text alone.
    """

    id: str
    score: float
    text: str = ""
    matched: Mapping[str, float] = field(default_factory=dict)
    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    words: float = 0.0
    tier: Tier = "set"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`total` is the size of the retrieved set: what the keywords find, and literal matches of the
    text. `more` counts what else the text finds. `hits` are the best of the set, then of the rest,
    score descending, then id.
    """

    total: int
    hits: Sequence[Hit]
    more: int = 0


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push; `written` are the documents written by this call."""

    index: str
    documents: int
    written: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Verified:
    """The counts of a verification that found no difference; `sampled` documents were compared."""

    index: str
    documents: int
    sampled: int
    queries: int
    scores: int


@dataclass(frozen=True, slots=True)
class Listed:
    """One pushed snapshot; `complete`: it is whole and passed its last verification."""

    snapshot: str
    documents: int
    serving: bool
    complete: bool


@checked_dataclass(frozen=True, slots=True, config=ConfigDict(strict=True, extra="ignore"))
class ServedSide:
    """One side of what serves: the snapshot's id, the index to search ("" in memory), its field of
    keywords and the type of its field of ids ("" in CoGR's own), and facts of its manifest.
    """

    snapshot: Annotated[str, Field(min_length=1)]
    index: str
    round: int
    normaliser: str
    field: str = "keywords"
    id_type: str = ""

    covered: float = 1.0
    """In an index of one's own, the share of documents that had keywords when it was published."""

    @classmethod
    def of(cls, manifest: Manifest) -> ServedSide:
        """A snapshot of the store, wherever it is pushed to."""
        return cls(manifest.id, "", manifest.round, manifest.normaliser)


@dataclass(frozen=True, slots=True)
class Pair:
    """What serves, seen at one moment. Either side may be absent.

    Attributes:
        flaws: what is missing or wrong, so that answers lack keywords or mix two pairs.
        warnings: what is less than it was, but still a whole pair.
        advice: the command that mends it; "" where none is known.
        coverage: share of the documents of an index of one's own that have keywords, where they
            were counted.
    """

    item: ServedSide | None = None
    query: ServedSide | None = None
    flaws: tuple[str, ...] = field(default=(), compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)
    advice: str = field(default="", compare=False)
    coverage: float | None = field(default=None, compare=False)

    @property
    def problems(self) -> Sequence[str]:
        """Flaws and warnings, as sentences, and last what to do."""
        said = [f"{one[:1].upper()}{one[1:]}." for one in (*self.flaws, *self.warnings)]
        return [*said, f"Run {self.advice}."] if said and self.advice else said

    @property
    def ids(self) -> Mapping[Side, str | None]:
        """The snapshot that serves each side, or None."""
        return {
            "item": self.item.snapshot if self.item else None,
            "query": self.query.snapshot if self.query else None,
        }

    @property
    def served(self) -> Mapping[Side, str]:
        """The snapshots that serve, by side; a side without one is left out."""
        return {side: id_ for side, id_ in self.ids.items() if id_}

    @property
    def mismatch(self) -> str:
        """Why the two sides are not a pair; "" where they are one, or one is absent."""
        return why_no_pair(self.item, self.query) if self.item and self.query else ""

    @property
    def matches(self) -> bool:
        """Whether both sides serve and make a pair."""
        return self.item is not None and self.query is not None and not self.mismatch

    @property
    def round(self) -> int:
        """The round of the item side; -1 without one."""
        return self.item.round if self.item else -1

    @property
    def name(self) -> str:
        """The ids of both snapshots, which identify the pair."""
        return ":".join(id_ or "none" for id_ in self.ids.values())


class Backend(Protocol):
    """A place to which snapshots are pushed and where they are searched. `catalogue` names it in
    file names, unique among the places to which snapshots of one store are published.
    """

    name: str
    catalogue: str

    def push(self, snapshot: Snapshot) -> Pushed:
        """Write the snapshot. Idempotent; goes on after an interruption. It does not serve yet."""

    def verify(
        self,
        snapshot: Snapshot,
        queries: Iterable[Keywords],
        *,
        every: bool = False,
        advance: Advance = lambda _: None,
    ) -> Verified:
        """Compare a pushed snapshot with its files: the count, a sample of documents or `every` one
        of them, and live results for keyword lists, weighted or not.

        Only a snapshot that passed its last verification can be published. Raises CheckFailedError
        with the first difference.
        """

    def publish(
        self, snapshots: Mapping[Side, str], expected: Mapping[Side, str | None] | None = None
    ) -> Mapping[Side, str | None]:
        """Let snapshots serve, for all given sides by one atomic call; returns what served before.
        Raises SnapshotError: not pushed, half-written, of the wrong side, or of another normaliser
        than the other side; CheckFailedError: not verified; LockedError: another snapshot serves
        than `expected`, compared and swapped as one.
        """

    def serving(self) -> Mapping[Side, str | None]:
        """The snapshot that serves each side, or None: the ids of `pair`."""

    def pair(self, *, counted: bool = False) -> Pair:
        """What serves, read by one request or from one file; `counted`: with the coverage of an
        index of one's own. `indexers.serving` compares it with what was published.
        """

    def state(self, places: Sequence[str], /) -> Mapping[str, str | None]:
        """What serves each side, and in these fields of other teams' indexes, named INDEX/FIELD. A
        place whose index is gone is left out.
        """

    def list(self) -> Sequence[Listed]:
        """Every pushed snapshot, by side and id."""

    def search(
        self,
        keywords: Keywords,
        *,
        snapshot: str,
        size: int = 10,
        explain: bool = False,
        words: Words | None = None,
    ) -> SearchResult:
        """The best entities of a pushed snapshot whose keywords ∪ {self} meet `keywords`, with
        their texts; with `words` the two tiers.

        `explain` fills in `Hit.matched` and `Hit.words`. BM25 scores of `words` differ between
        backends, as their analysers do.
        """

    def retrieved(
        self, keywords: Keywords, *, snapshot: str, words: Words | None = None
    ) -> SearchResult:
        """The whole retrieved set with scores, without texts; paged where the backend pages."""

    def lookup(self, text: str, *, snapshot: str) -> Row | None:
        """The row of a query text, with its precomputed keywords, their weights and the confidence
        in them; None when there is none. Of several queries with the same normalised text, the
        first by id is taken.
        """

    def delete(self, snapshot: str) -> None:
        """Remove a pushed snapshot. Refused while it serves."""

    def close(self) -> None: ...


Bodies = tuple[dict[str, Any], dict[str, Any]]
"""The query of both tiers, and that of the set alone."""


class Live(Protocol):
    """A backend as the query expander asks it: without blocking. Raises ValueError for an answer
    that makes no sense, and `errors` where it is away.

    Attributes:
        name: of the upstream, in metrics.
        patience: seconds that `pair` may take.
    """

    name: str
    errors: tuple[type[Exception], ...]
    patience: float

    async def pair(self) -> Pair | ServiceError:
        """What serves, with its coverage in an index of one's own; or why that can't be told."""

    async def lookup(self, query: ServedSide, text: str) -> Row | None:
        """The row of a folded text, checked; None where there is none."""

    def bodies(self, item: ServedSide | None, keywords: Keywords, words: Words) -> Bodies:
        """The queries to send to the index."""

    async def close(self) -> None: ...


def open_backend(settings: Settings, store: Store) -> Backend:
    """The backend that the settings name. Raises SettingsError."""
    if settings.backend_name == "memory":
        from indexers.backends.memory import MemoryBackend

        return MemoryBackend(store)
    from indexers.backends.opensearch import OpenSearchBackend

    return OpenSearchBackend(settings.opensearch, store, settings.serving.into)


def open_live(settings: Settings, backend: Backend) -> Live:
    """The same for the query expander; in memory it asks `backend`."""
    from indexers.backends.opensearch.live import LiveCluster
    from indexers.backends.opensearch.search import bodies

    if settings.backend_name == "memory":
        from indexers.backends.memory import LiveMemory

        return LiveMemory(backend, bodies)
    return LiveCluster(settings.opensearch, settings.serving.into, settings.serving.index_timeout)


_Weight = Annotated[float, Field(ge=0, le=HEAVIEST, allow_inf_nan=False)]


class Entry(BaseModel):
    """A row as a cache or a document of the query index has it, whose `keywords` have the text
    too.
    """

    model_config = ConfigDict(strict=True)

    keywords: Annotated[list[str], Field(validation_alias=AliasChoices("generated", "keywords"))]
    weights: list[_Weight] | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _one_weight_each(self) -> Self:
        if self.weights and len(self.weights) != len(self.keywords) + 1:
            raise ValueError("there is a weight for each keyword and one for the query")
        return self

    def row(self) -> Row:
        """The entry as a row without id and text. Raises ValueError for a lone surrogate."""
        # Lone surrogates can't be sent on: a UnicodeEncodeError is a ValueError.
        "".join(self.keywords).encode()
        return Row("", "", tuple(self.keywords), "", tuple(self.weights or ()), self.confidence)


def language_of(snapshot: Snapshot) -> str:
    """The language by which a snapshot's texts are read (`indexers.text.Analyser`): that of its
    generator, named or detected, else that of its texts.
    """
    named = snapshot.manifest.generator.get("language")
    return str(named) if named else detect_language(map(" ".join, whole_texts(snapshot)))


MAX_CLAUSES = 1024
"""Most keywords of a search: a cluster's default of `indices.query.bool.max_clause_count`."""
MAX_TEXT = 512
"""Most characters of a text that are searched: a cluster limits clauses and automata."""
SAMPLE = 500
"""Size of the sample that a verification compares field by field."""


def compared(snapshot: Snapshot, *, every: bool) -> Collection[int]:
    """Numbers of the rows that a verification compares: of every one, or of a sample that is always
    the same for one snapshot.
    """
    entities = snapshot.manifest.entities
    if every:
        return range(entities)
    return frozenset(random.Random(snapshot.id).sample(range(entities), min(SAMPLE, entities)))
