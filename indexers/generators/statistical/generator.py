"""The generator `statistical`: answers both sides from a fitted artefact.

No language model; prompts are not read.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cogr.datasets.builder import DEV_SHARE, by_hash
from cogr.errors import SnapshotError
from cogr.keywords import NORMALISER
from cogr.records import Dataset, Item, Query
from cogr.settings.indexing import KINDS
from cogr.store import Store
from indexers.generators import (
    Answer,
    Completion,
    Context,
    Generator,
    Options,
    Request,
    batched,
    fingerprint_hash,
)
from indexers.generators.statistical import MANIFEST
from indexers.text import DETECT, detect_language

if TYPE_CHECKING:
    from cogr.matching.mirror import Mirror
    from cogr.snapshots import Manifest
    from indexers.generators.judging import YesOrNo
    from indexers.generators.statistical.artefact import Artefact
    from indexers.generators.statistical.ranking.encoder import Encoder, EncoderChoice
    from indexers.generators.statistical.ranking.matrices import Ints
    from indexers.generators.statistical.ranking.ranker import Ranker

log = logging.getLogger(__name__)

VERSION = 15
"""Version of the method: raise it with any change that fits the same data set otherwise."""

FOLDER = "statistical"
"""Where a store keeps fitted artefacts, one folder a data set and options."""

LATEST = f"{FOLDER}/latest.json"
"""Names of a store's `MAX_LATEST` newest fits, newest first."""

MAX_LATEST = 10
"""How many of the newest fits are remembered; each records which items were new to it."""

DISTILLED = "distilled"
EVIDENCE, STACKING, JUDGE, JOINED = "evidence", "stacking", "judge", "joined"
"""The keys of a fingerprint that name the snapshot pairs used as evidence, their coefficients, the
judge, and the snapshots that later items joined.
"""

_OF_DATA = ("dataset_hash", "new", "pair_signals_digest", STACKING, JUDGE, JOINED)
"""The keys of a fingerprint that follow from the data and from the other side."""

FIGURES = ("f1_out_of_fold", "f1_hidden_topics", "f1_of_text")
"""The facts of a fit that say what it expects of new queries."""

AUTO, NO_ENCODER = "auto", "none"

_BATCH = 16


class StatisticalOptions(Options):
    """Options of the kind `statistical`.

    Attributes:
        encoder: an encoder whose vectors the ranker learns from, see `ranking.encoder.Encoder`;
            "auto" (see `ranking.encoder.choose`) or "none".
        evidence: snapshot pairs (items, queries) whose retrieved sets count beside the ranker's
            probabilities (`stacking`), where that gains F1. They don't change the item side.
            Without dev queries, `DEV_SHARE` of the training queries are taken as ones that the
            pairs have not learned from.
        judge: options of a language model whose yes or no on pairs near the cut is evidence
            (`judge_evidence`), where that gains F1: for the queries of the data set, and for items
            that come later.
    """

    language: str = "english"
    seed: int = 0
    pair_signals: tuple[str, ...] = ()
    encoder: str = NO_ENCODER
    evidence: tuple[tuple[str, str], ...] = ()
    judge: Mapping[str, Any] | None = None

    def make(self, context: Context) -> Statistical:
        side, dataset, store = context
        assert dataset is not None
        assert store is not None
        options = self
        if options.language == DETECT:
            from indexers.generators.statistical.ranking.text_index import item_text

            language = detect_language(map(item_text, dataset.items))
            options = options.model_copy(update={"language": language})
        if side == "item":
            options = options.model_copy(update={"evidence": ()})
        return Statistical(dataset, store, options, judges=side == "query")


class Statistical(Generator):
    """Keywords from a ranker that is learned from the training labels. Fits, or opens what was
    fitted, when first asked.

    An item is answered with its keywords. A query of the training split is answered as if it had
    not been trained on (out of fold), so that training figures and fine-tuning targets are honest;
    any other query by all that was learned, and, where it has the text of a training query, by that
    one's labels too. A query whose own text already retrieves the right items may get no keywords:
    its completion is empty.

    Args:
        store: where the artefact is kept.
        decides: whether the encoder is chosen, and fetched, where `auto` has no recorded choice;
            there is none otherwise.
        judges: whether queries are answered with what a judge says of them.
    """

    reads = "entity"

    def __init__(
        self,
        dataset: Dataset,
        store: Store,
        options: StatisticalOptions = StatisticalOptions(),  # noqa: B008  (it is frozen)
        *,
        decides: bool = True,
        judges: bool = True,
    ) -> None:
        self.options = options
        self._dataset, self._store, self._decides = dataset, store, decides
        self._judges = judges and self.options.judge is not None

    def looking(self, **options: Any) -> Statistical:
        """The same generator, with these options changed, that chooses no encoder."""
        changed = self.options.model_copy(update=options)
        rest = {"decides": False, "judges": self._judges}
        return Statistical(self._dataset, self._store, changed, **rest)

    @property
    def fingerprint(self) -> Mapping[str, object]:
        """With evidence it also names the pairs, their coefficients and the data of that fit."""
        facts = dict(self._of_fit)
        if self._judge is not None and self._judges:
            facts[JUDGE] = self._judge.fingerprint
        if self.options.evidence:
            pairs = [list(pair) for pair in self.options.evidence]
            stack = self._stacked.stack
            facts |= {EVIDENCE: pairs, STACKING: stack.lineage if stack else {"gains": False}}
        return facts

    @cached_property
    def _of_fit(self) -> Mapping[str, Any]:
        options = self.options.model_dump(exclude={"evidence", "judge", "pair_signals"})
        facts: dict[str, Any] = {
            "kind": "statistical",
            "version": VERSION,
            "normaliser": NORMALISER,
            "dataset_hash": self._dataset.dataset_hash,
            **options,
            "encoder": self._encoder.digest if self._encoder else None,
        }
        if names := self.options.pair_signals:
            numbers = [self._dataset.pair_signals.get(name) for name in names]
            facts |= {"pair_signals": names, "pair_signals_digest": _digest(numbers)}
        if self._new_ids:
            facts["new"] = _digest(sorted(self._new_ids))
        return facts

    @cached_property
    def _encoder(self) -> Encoder | None:
        from indexers.generators.statistical.ranking.encoder import Encoder

        chosen = self._choice
        return Encoder(chosen.model, self._store, kept=chosen.digest) if chosen.model else None

    @cached_property
    def _choice(self) -> EncoderChoice:
        from indexers.generators.statistical.ranking.encoder import (
            EncoderChoice,
            choose_encoder,
            recorded,
        )

        name = self.options.encoder
        if name != AUTO:
            return EncoderChoice("" if name == NO_ENCODER else name)
        if self._decides:
            return choose_encoder(self._dataset.items, self.options.language, self._store)
        return recorded(self._store) or EncoderChoice(why="none is chosen yet")

    @property
    def told_encoder(self) -> str:
        """Which encoder there is, or why none, for a person."""
        return str(self._choice)

    @cached_property
    def _new_ids(self) -> frozenset[str]:
        return new_ids(self._dataset, self._store)

    @property
    def artefact(self) -> Artefact:
        """The fitted artefact; for `rankings`, and for the figures in its `facts`.

        Raises:
            GeneratorError: the data set has too few training queries with labels.
            SnapshotError: a pair is not in the store.
        """
        return self._stacked if self.options.evidence else self._judged

    @property
    def told_judge(self) -> str | None:
        """How many pairs a judge was asked about, at what cost and what that is worth, for a
        person; None without a judge. It is asked now where it has not been.
        """
        return str(self.artefact.judged) if self._judges else None

    @property
    def told_f1(self) -> str:
        """What the fit expects of new queries, for a person; "" before there is one."""
        return told_f1(facts_of(self._store, self._of_fit))

    @cached_property
    def _judge(self) -> YesOrNo | None:
        if self.options.judge is None:
            return None
        from indexers.generators.judging import YesOrNo

        return YesOrNo(self.options.judge, self._store)

    @cached_property
    def _judged(self) -> Artefact:
        queries = [*self._dataset.all_queries(), *self._dataset.unlabelled]
        return self.with_judge(self._fitted, queries) if self._judges else self._fitted

    def with_judge(
        self, artefact: Artefact, queries: Sequence[Query], only: Ints | None = None
    ) -> Artefact:
        """The artefact with what the judge says of pairs of these queries, and of these items
        alone where they are given; as it is without a judge.
        """
        if self._judge is None:
            return artefact
        from indexers.generators.statistical.judge_evidence import judged

        items = {item.id: item for item in self._dataset.items}
        with closing(self._judge):
            return judged(artefact, self._judge, items, queries, only)

    @cached_property
    def _stacked(self) -> Artefact:
        from indexers.generators.statistical.stacking import EarlierPair, stacked

        fitted, relevant = self._judged, self._dataset.relevant
        pairs = [EarlierPair(self._store, *ids, fitted.numbers) for ids in self.options.evidence]
        # Queries that the pairs have not learned from.
        train, dev = (self._dataset.queries.get(split, ()) for split in ("train", "dev"))
        ids = by_hash((query.id for query in train), DEV_SHARE)
        held_out = dev or [query for query in train if query.id in ids]
        asked = [(query, sorted(relevant.get(query.id, ()))) for query in held_out]
        return stacked(fitted, pairs, asked, self.options.seed)

    @cached_property
    def _fitted(self) -> Artefact:
        from indexers.generators.statistical.fitting import fit
        from indexers.generators.statistical.storage import open_artefact, save

        if self._folder.exists(MANIFEST):
            try:
                return open_artefact(self._folder, self._encoder)
            except SnapshotError as error:
                log.warning("Fitting again: %s", error)
        options = self.options.model_dump(exclude={"encoder", "evidence", "judge"})
        dataset = replace(self._dataset, new=self._new_ids)
        artefact = fit(dataset, **options, encoder=self._encoder)
        save(artefact, self._folder)
        own = fingerprint_hash(self._of_fit)
        others = [name for name in _latest(self._store) if name != own]
        self._store.write_json(LATEST, [own, *others][:MAX_LATEST])
        return artefact

    @property
    def is_fitted(self) -> bool:
        """Whether the store has an artefact for this data set and these options."""
        # No encoder is chosen for the answer that there is none.
        return bool(self._store.list(FOLDER)) and self._folder.exists(MANIFEST)

    def keeping(
        self, written: Mapping[str, Any], items: str | None, queries: str | None
    ) -> Statistical | None:
        """The generator on the fit that wrote a snapshot: itself, or a `KeptFit`. None where that
        fit is gone, was made with other options, or has evidence.

        Args:
            written: the fingerprint in that snapshot's manifest.
            items, queries: ids of the snapshots that later items join.
        """
        if fingerprint_hash(written) == fingerprint_hash(self.fingerprint):
            return self
        if options_hash(written) != options_hash(self.fingerprint):
            return None
        # Queries that come later are not judged.
        options = self.options.model_copy(update={"judge": None} if self._judges else {})
        kept = KeptFit(self._dataset, self._store, options, written, (items, queries))
        return kept if kept.is_fitted and not self.options.evidence else None

    def live(self, written: Mapping[str, Any], items: str | None) -> Statistical | None:
        """The generator for queries that no snapshot has, on the fit that wrote a query snapshot;
        None as of `keeping`. Evidence never applies to such queries, and nothing is fitted.

        Args:
            written: the fingerprint in that snapshot's manifest.
            items: id of the item snapshot that serves.
        """
        model = self.looking(evidence=(), judge=None).keeping(fit_of(written), items, None)
        return model if model is not None and model.is_fitted else None

    @property
    def _folder(self) -> Store:
        return self._store.below(f"{FOLDER}/{fingerprint_hash(self._of_fit)}")

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        for batch in batched(requests, _BATCH):
            queries = [request.entity for request in batch if isinstance(request.entity, Query)]
            answers = iter(self.artefact.answers(queries))
            for request in batch:
                if isinstance(request.entity, Item):
                    keywords = self.artefact.item_keywords(request.entity)
                    yield Completion(request.id, ", ".join(keywords))
                else:
                    yield next(answers)


class KeptFit(Statistical):
    """The fit that wrote a snapshot, for the items and queries of today. Nothing is fitted again.

    An item that the fit has not seen, or not with this text, gets the keywords by which the known
    queries find it (`new_items`). A query is answered with the keywords that such items have.

    Args:
        written: the fingerprint in the snapshot's manifest.
        pair: ids of the item and the query snapshot that the items join.
    """

    def __init__(
        self,
        dataset: Dataset,
        store: Store,
        options: StatisticalOptions,
        written: Mapping[str, Any],
        pair: tuple[str | None, str | None],
    ) -> None:
        super().__init__(dataset, store, options, decides=False)
        self._written, self._pair = written, pair
        self._told: str | None = None

    @property
    def told_judge(self) -> str | None:
        """As of `Statistical`, once new items have keywords."""
        return self._told

    @property
    def fingerprint(self) -> Mapping[str, object]:
        facts = {**self._of_fit, JOINED: [*self._pair]}
        return facts if self._judge is None else {**facts, JUDGE: self._judge.fingerprint}

    @cached_property
    def _of_fit(self) -> Mapping[str, Any]:
        return fit_of(self._written)

    @cached_property
    def _fitted(self) -> Artefact:
        from indexers.generators.statistical.storage import open_artefact

        return open_artefact(self._folder, self._encoder)

    @cached_property
    def artefact(self) -> Artefact:
        """The fit, with the items of today and their keywords in the item snapshot."""
        from indexers.generators.statistical.new_items import joined, unseen, with_keywords

        items = unseen(self._fitted, self._dataset.items)
        snapshot = self._mirror(self._pair[0]) if self._pair[0] else None
        if self._only_queries and snapshot is not None:
            items = [item for item in items if snapshot.ids.find(item.id) >= 0]
        artefact = joined(self._fitted, items, self._cold) if items else self._fitted
        return artefact if snapshot is None else with_keywords(artefact, items, snapshot)

    @property
    def _only_queries(self) -> bool:
        """Whether it answers queries that come later, and so may not be trained for items."""
        return self._pair[1] is None

    @cached_property
    def _cold(self) -> Ranker | None:
        from indexers.generators.statistical.new_items import cold_of
        from indexers.generators.statistical.storage import open_cold, save_cold

        fitted, store = self._fitted, self._folder.below("cold")
        if store.exists(MANIFEST):
            return open_cold(store, fitted.ranker.folds)
        if self._only_queries and not fitted.ranker.new.any():
            return None
        cold = cold_of(fitted)
        if not fitted.ranker.new.any():
            save_cold(cold, store)
        return cold

    def _mirror(self, id_: str) -> Mirror:
        from cogr.snapshots import open_snapshot
        from indexers.backends.memory import mirror_of

        return mirror_of(open_snapshot(self._store, id_))

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        asked = list(requests)
        items = [request.entity for request in asked if isinstance(request.entity, Item)]
        if not items:
            yield from super().generate(asked)
            return
        keywords = self._chosen(items)
        for item in items:
            words = keywords.get(item.id) or self._fitted.item_keywords(item)
            yield Completion(item.id, ", ".join(words))

    def _chosen(self, items: list[Item]) -> dict[str, list[str]]:
        from indexers.generators.statistical.new_items import chosen, unseen

        fresh, (item, query) = unseen(self._fitted, items), self._pair
        if not (item and query and fresh):
            return {}
        judge = None if self._judge is None else self._on_new_items
        pair = self._mirror(item), self._mirror(query)
        return chosen(self._fitted, self._cold, fresh, pair, judge)

    def gaining(self, ids: Collection[str]) -> frozenset[str]:
        """Ids of the known queries that other keywords serve better, now that these items have
        theirs in the item snapshot (`new_items.gaining`).
        """
        from indexers.generators.statistical.new_items import gaining, unseen

        items = [item for item in unseen(self._fitted, self._dataset.items) if item.id in ids]
        item, query = self._pair
        if not (item and query and items):
            return frozenset()
        return gaining(self.artefact, items, (self._mirror(item), self._mirror(query)))

    def _on_new_items(self, artefact: Artefact, queries: Sequence[Query], items: Ints) -> Artefact:
        judged = self.with_judge(artefact, queries, items)
        self._told = str(judged.judged)
        return judged


def new_ids(dataset: Dataset, store: Store) -> frozenset[str]:
    """The items that the labels cannot know: those that the data set says are new, and those that
    came after a fit to the same labels.
    """
    fits = _latest(store) if KINDS["statistical"].is_installed else []
    if not fits:
        return dataset.new
    from indexers.generators.statistical.storage import known_before

    added: set[str] = set()
    train = {query.id for query in dataset.queries.get("train", ())}
    labels = {(query, item) for query in train for item in dataset.relevant.get(query, ())}
    ids = {item.id for item in dataset.items}
    for name in fits:
        try:
            before, known, new = known_before(store.below(f"{FOLDER}/{name}"))
        except SnapshotError:
            continue  # Gone, of another version, or damaged: it says nothing.
        if {pair for pair in known if pair[1] in ids} == labels:
            added |= (ids - before) | new
    return dataset.new | dataset.never_judged(added & ids)


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _latest(store: Store) -> list[str]:
    try:
        return [str(name) for name in json.loads(store.read(LATEST))]
    except (FileNotFoundError, ValueError, TypeError):
        return []  # Nothing is fitted yet, or the list is damaged: it says nothing.


def options_hash(fingerprint: Mapping[str, Any]) -> str:
    """The hash of a fingerprint without what follows from the data and from the other side."""
    return fingerprint_hash({key: of for key, of in fingerprint.items() if key not in _OF_DATA})


def fit_of(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint of the fit alone, without evidence and without what later items joined."""
    without = (EVIDENCE, STACKING, JUDGE, JOINED)
    return {name: of for name, of in fingerprint.items() if name not in without}


def facts_of(store: Store, fingerprint: Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts of the fit that wrote a snapshot; none where another generator did, or it is gone.

    Args:
        fingerprint: in the snapshot's manifest.
    """
    path = f"{FOLDER}/{fingerprint_hash(fit_of(fingerprint))}/{MANIFEST}"
    if fingerprint.get("kind") != "statistical" or not store.exists(path):
        return {}
    facts: Mapping[str, Any] = store.read_json(path)["facts"]
    return facts


def latest_facts(store: Store, dataset_hash: str) -> Mapping[str, Any]:
    """The facts of the newest fit to a data set; none where there is none."""
    paths = (f"{FOLDER}/{name}/{MANIFEST}" for name in _latest(store))
    every = (store.read_json(path)["facts"] for path in paths if store.exists(path))
    return next((facts for facts in every if facts["dataset"] == dataset_hash), {})


def f1_in(facts: Mapping[str, Any]) -> dict[str, float]:
    """Expected F1 of the keywords of new queries where the labels know their topic, where they do
    not, and of text search on the same queries; nothing without facts.
    """
    return {name: facts[name] for name in FIGURES if facts}


def told_f1(facts: Mapping[str, Any]) -> str:
    """What a fit expects of the keywords of new queries, for a person; "" without facts."""
    if not facts:
        return ""
    return (
        f"expected F1 {facts['f1_out_of_fold']:.3f} where the labels know a query's topic, "
        f"{facts['f1_hidden_topics']:.3f} where they do not; text search (BM25) has "
        f"{facts['f1_of_text']:.3f} on the same queries"
    )


def old_fits(store: Store, snapshots: Iterable[Manifest]) -> list[str]:
    """Folders of the fits that neither wrote one of these snapshots nor are among the newest, but
    not of one that is written now.
    """
    wrote = {fingerprint_hash(fit_of(one.generator)) for one in snapshots}
    kept = {*_latest(store), *wrote, LATEST.removeprefix(f"{FOLDER}/")}
    return [
        f"{FOLDER}/{name}"
        for name in store.list(FOLDER)
        if name not in kept and store.is_at_rest(f"{FOLDER}/{name}", MANIFEST)
    ]


def writer_of(item: Manifest, query: Manifest | None) -> str:
    """What wrote a pair, for people: distilled, statistical, vllm shop, round 2, ..."""
    of = (query or item).generator
    if of.get(EVIDENCE):
        return DISTILLED
    model = str(of.get("model") or "").rstrip("/").rpartition("/")[2]
    kind = " ".join(filter(None, (str(of.get("kind", "")) or "imported", model)))
    return f"{kind}, round {item.round}" if item.round else kind
