"""A language model as a judge of pairs (query, item): what it is asked, and its answers, cached.

The item comes first in every prompt and the query last, so that an engine reads an item once for
all of its queries. Answers go into the generation cache of the store as they come: a killed judge
resumes, and no pair is paid for twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.prompts import Prompt
from cogr.records import Item, Query
from cogr.store import Store
from indexers.generators import Answer, Completion, Generator, Request, make_generator
from indexers.generators.cache import GenerationCache, Keys, generate_into, request_key
from indexers.generators.model_folders import read_json, with_base

SYSTEM = "You judge search results."
PAIR = "\n\nItem: {title}\nDescription: {text}\n\nSearch: {query}"
YES_OR_NO = "Does the item answer the search? Answer Yes or No."

TEXT_CHARACTERS = 1200
"""An item's text is cut here."""

MAX_LOGIT = 30.0
"""Log-odds are clipped to ± this: beyond it a probability says no more."""

TRAINED, EVERY, PARTS = "judge.json", "all", 3
"""Of a trained judge's folder: the file that names the part of each training query and item, the
adapter that has learned from all labels, and how many parts, "0" and so on, have one of their own.
"""


@dataclass(frozen=True)
class QueryItem:
    """One question to the judge: whether the item answers the query."""

    query: Query
    item: Item

    @property
    def id(self) -> str:
        return f"{self.query.id}\t{self.item.id}"

    def request(self, question: str, form: str = "") -> Request:
        """The question, the item, the search, and in which form to answer."""
        item, text = self.item, self.item.text[:TEXT_CHARACTERS]
        asked = PAIR.format(title=item.title, text=text, query=self.query.text)
        cut = len(self.item.text) > TEXT_CHARACTERS
        return Request(self.id, self.item, Prompt(SYSTEM, question + asked + form, cut))


class Answers:
    """The answers of a judge in the generation cache of a store.

    Raises:
        ServiceError: of `ask`, where the endpoint can't be reached; answers so far are kept.
        StorageError: the store can't be read or written.
    """

    def __init__(self, generator: Generator, store: Store) -> None:
        self.generator = generator
        self._cache = GenerationCache(store, {**generator.fingerprint, "for": "judge"})

    def missing(self, requests: Sequence[Request]) -> list[int]:
        """Places of the requests that have no answer yet."""
        return [*self._cache.missing(self._keys(requests))]

    def ask(self, requests: Sequence[Request]) -> None:
        """Ask for these answers, and keep them as they come."""
        if requests:
            keyed = zip(self._keys(requests), requests, strict=True)
            generate_into(self._cache, "query", self.generator, keyed)

    def read(self, requests: Sequence[Request]) -> list[Answer | None]:
        """The answers that are there; None for others."""
        known = self._cache.load(self._keys(requests))
        return known.answers([request.id for request in requests], 0)

    def _keys(self, requests: Sequence[Request]) -> Keys:
        return Keys.of(request_key(one.id, one.prompt, self.generator.reads) for one in requests)


class YesOrNo:
    """Asks whether items answer queries.

    A judge that was trained on labels (`examples/train_judge.py`) is a folder of adapters, each
    for a part of the training queries and items of which it has learned nothing.

    Args:
        options: of a generator that reads prompts, for `make_generator`.

    Attributes:
        asked, seconds: how many pairs were not in the cache, and what they took.
        unanswered: pairs to which the model said neither yes nor no.
    """

    def __init__(self, options: Mapping[str, Any], store: Store) -> None:
        self._options, self._store = options, store
        self._folder = Path(str(options["model"])).expanduser()
        trained = (self._folder / TRAINED).is_file()
        self._parts = read_json(self._folder / TRAINED, "The judge") if trained else {}
        self._open: dict[str, Answers] = {}
        self.asked, self.seconds, self.unanswered = 0, 0.0, 0

    @property
    def fingerprint(self) -> Mapping[str, object]:
        """That of its generator; of adapters, the one that has learned from all labels."""
        return self._answers(EVERY).generator.fingerprint

    def close(self) -> None:
        """Free what the generator holds. May be called again."""
        for one in self._open.values():
            one.generator.close()

    def logits(self, pairs: Sequence[QueryItem], *, new: bool = False) -> NDArray[np.float64]:
        """Log-odds of yes of each pair; nan where the model gave no answer, (pairs,).

        Args:
            new: the items pass for new ones: a pair counts if the query's adapter has not seen the
                item either.
        """
        logits = np.full(len(pairs), np.nan)
        parts = [self._part(pair, new) for pair in pairs]
        for part in sorted({*parts} - {""}):
            places = [at for at, own in enumerate(parts) if own == part]
            logits[places] = self._ask(self._answers(part), [pairs[at] for at in places])
        return logits

    def _part(self, pair: QueryItem, new: bool) -> str:
        """The adapter to ask; "" for none."""
        query = self._parts.get("queries", {}).get(pair.query.id)
        item = self._parts.get("items", {}).get(pair.item.id)
        if query is None or item is None:
            return EVERY
        return "" if new and query != item else str(query)

    def _answers(self, part: str) -> Answers:
        if part not in self._open:
            options = {**self._options, "yes_or_no": True}
            if self._parts:
                base, adapter = with_base(str(self._folder / part))
                options |= {"model": base, "adapter": adapter}
            generator = make_generator(options, "query", None, self._store)
            self._open[part] = Answers(generator, self._store)
        return self._open[part]

    def _ask(self, answers: Answers, pairs: Sequence[QueryItem]) -> NDArray[np.float64]:
        requests = [pair.request(YES_OR_NO) for pair in pairs]
        # An engine reads what prompts begin with once.
        order = sorted(answers.missing(requests), key=lambda at: requests[at].prompt.user)
        started = time.monotonic()
        answers.ask([requests[at] for at in order])
        if self._parts:
            self.close()  # One model at a time.
        self.asked += len(order)
        self.seconds += time.monotonic() - started
        known = answers.read(requests)
        p = [one.confidence if isinstance(one, Completion) else None for one in known]
        self.unanswered += p.count(None)
        chance = np.array([np.nan if one is None else one for one in p])
        with np.errstate(divide="ignore"):
            odds: NDArray[np.float64] = np.log(chance) - np.log1p(-chance)
        return odds.clip(-MAX_LOGIT, MAX_LOGIT)
