"""Labels from a language model as a judge: the paper's five levels for pooled pairs.

The first items of every retriever for each query are pooled (`indexers.inspection`), without
pairs that are judged already. Every pair is one prompt to one of the generators that read prompts.
Answers go into the generation cache of the store as they come, so that a killed judge resumes, and
no pair is paid for twice. An answer counts only when it names exactly one level; other pairs are
counted and get no label.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cogr.datasets.builder import place
from cogr.errors import DataError, GeneratorError
from cogr.records import SPLITS, Dataset, Query
from cogr.settings.indexing import KINDS
from cogr.store import Store
from indexers.generators import Completion, Generator, Request, make_generator
from indexers.generators.judging import PAIR, Answers, QueryItem
from indexers.inspection import runs_of
from indexers.workspace import Workspace, generator_options, judging
from trainers.labels import LEVELS, RELEVANT
from trainers.labels.from_clicks import check_free, write_folder, write_rows

GRADES = """How well does the item answer the search? Answer with one JSON object and nothing else.
excellent: exactly what is searched for.
good: fits, with a small difference.
acceptable: a shopper may take it instead.
poor: related, but not what is meant.
bad: unrelated."""
FORM = """

Answer with {"grade": "excellent"}, {"grade": "good"}, {"grade": "acceptable"}, {"grade": "poor"} \
or {"grade": "bad"}."""

_DEPTH = 10
"""Items of each query from each retriever."""
MIN_PAIRS = 10
"""Fewest pairs for a measurement of agreement."""
_CHARACTERS_PER_TOKEN = 4
_ANSWER_TOKENS = 12
_LEVEL = re.compile(rf"\b({'|'.join(LEVELS)})\b", re.IGNORECASE)
_GRADE = re.compile(r"\{[^{}]*\"grade\"\s*:\s*\"(\w+)\"[^{}]*\}")


@dataclass(frozen=True)
class JudgedLabels:
    """What was written to a folder, a complete data set: how many labels of the judge, in all and
    by level; pairs judged, unreadable and so on; agreement with people, None with too few pairs.
    """

    folder: Path
    labels: int
    grades: Mapping[str, int]
    counts: Mapping[str, int]
    agreement: Agreement | None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "levels": LEVELS}

    @property
    def said(self) -> str:
        if (measured := self.agreement) is None:
            return "Agreement with people is not measured: too few pairs that people judged."
        return (
            f"Agreement with people on {measured.pairs} pairs: kappa {measured.kappa:.2f}, "
            f"accuracy {measured.accuracy:.0%}; beside people the judge calls "
            f"{measured.lean:+.0%} of them relevant. With a kappa below 0.4 don't train on these "
            "labels."
        )


def parse_grade(text: str) -> int | None:
    """The grade of an answer: that of its JSON object, else the only level among its words; None
    where it names none, or several.
    """
    match = _GRADE.search(text)
    named = {word.casefold() for word in ([match[1]] if match else _LEVEL.findall(text))}
    return LEVELS.index(named.pop()) if len(named) == 1 and named <= {*LEVELS} else None


class Judge:
    """The questions of one call, and their answers: of the `queries` most frequent queries, and of
    `known` pairs that people judged, to measure agreement. `generator` names one that reads
    prompts; that of the query side by default.

    Raises GeneratorError where it is not a language model, or can't be set up; DataError for a data
    set without queries.
    """

    def __init__(
        self,
        workspace: Workspace,
        queries: int = 100,
        known: int = 200,
        generator: str | None = None,
    ) -> None:
        self.workspace = workspace
        dataset = workspace.dataset
        self.queries = choose_queries(dataset, queries)
        if not self.queries:
            raise DataError(
                f"The data set {dataset.name} has no queries to judge; add queries, with or "
                "without labels."
            )
        self.generator = _generator(workspace, generator)
        self.pairs = pool(workspace, self.queries)
        self.known = known_sample(dataset, known)
        self._requests = [pair.request(GRADES, FORM) for pair in (*self.known, *self.pairs)]
        self._answers = Answers(self.generator, workspace.store)
        self.grades: dict[str, int] = {}
        self.counts: Counter[str] = Counter()

    def _unanswered(self) -> list[Request]:
        return [self._requests[at] for at in self._answers.missing(self._requests)]

    def estimate(self) -> dict[str, int]:
        """Pairs to judge, those of them that people judged, those answered already, and the tokens
        of the others, at four characters a token.
        """
        missing = self._unanswered()
        letters = sum(len(request.prompt.text) for request in missing)
        return {
            "pairs": len(self._requests),
            "known": len(self.known),
            "cached": len(self._requests) - len(missing),
            "prompt_tokens": letters // _CHARACTERS_PER_TOKEN,
            "answer_tokens": _ANSWER_TOKENS * len(missing),
        }

    def run(self) -> None:
        """Ask for the pairs that are not in the cache, and read all answers.

        Raises ServiceError where the endpoint can't be reached; answers so far are kept.
        """
        self._answers.ask(self._unanswered())
        answers = self._answers.read(self._requests)
        for request, answer in zip(self._requests, answers, strict=True):
            grade = parse_grade(answer.text) if isinstance(answer, Completion) else None
            if grade is not None:
                self.grades[request.id] = grade
                said = "pairs judged"
            elif isinstance(answer, Completion):
                said = "pairs without a readable answer"
            else:
                said = "pairs that failed, asked again by the next call"
            self.counts[said] += 1

    def agreement(self) -> Agreement | None:
        """Agreement with people, on the pairs of the sample that the judge graded."""
        relevant = self.workspace.dataset.relevant
        graded = [one for one in self.known if one.id in self.grades]
        pairs = [(one.query.id, one.item.id, self.grades[one.id]) for one in graded]
        return agreement([(i in relevant[q], grade) for q, i, grade in pairs])


@dataclass(frozen=True)
class Agreement:
    """Agreement of the judge with people on some pairs.

    Attributes:
        accuracy: share in which both say relevant, or both not.
        kappa: Cohen's; 0 is chance, 1 is full agreement.
        lean: the share of pairs that the judge calls relevant minus the share that people do; above
            0 the judge is lenient.
    """

    pairs: int
    accuracy: float
    kappa: float
    lean: float


def agreement(pairs: Sequence[tuple[bool, int]]) -> Agreement | None:
    """The figures of pairs (whether people called it relevant, the judge's grade); None with fewer
    than `MIN_PAIRS`.
    """
    if len(pairs) < MIN_PAIRS:
        return None
    people = np.array([relevant for relevant, _ in pairs])
    judge = np.array([grade >= RELEVANT for _, grade in pairs])
    same = float((people == judge).mean())
    chance = float(people.mean() * judge.mean() + (~people).mean() * (~judge).mean())
    return Agreement(
        len(pairs),
        round(same, 4),
        round((same - chance) / (1 - chance), 4) if chance < 1 else 1.0,
        round(float(judge.mean() - people.mean()), 4),
    )


def _generator(workspace: Workspace, name: str | None) -> Generator:
    """The generator of the query side, with greedy decoding."""
    settings = workspace.settings.generator.of("query")
    chosen = name or settings.name
    if chosen not in KINDS or KINDS[chosen].reads_data:
        raise GeneratorError(
            f"The generator {chosen} can't judge: name a language model with --generator or "
            "generator.name (openai, transformers or vllm)."
        )
    options = generator_options(judging(settings, chosen))
    return make_generator(options, "query", workspace.dataset, workspace.store)


def write_judged(judge: Judge, folder: Path, *, replace: bool) -> JudgedLabels:
    """Write a whole data set: items, queries with their splits, the labels of the judge and of
    people (relevant ones as good, others as bad), lineage.
    """
    check_free(folder, replace=replace)
    dataset = judge.workspace.dataset
    agreement = judge.agreement()
    labels = [*_labels(judge), *_known(dataset)]
    if not judge.grades:
        reasons = ", ".join(f"{name}: {count:,}" for name, count in (+judge.counts).items())
        raise DataError(
            f"The judge gave no label ({reasons or 'no pairs'}); see -v for its answers."
        )
    items = (
        {"id": item.id, "title": item.title, "text": item.text, **item.fields}
        for item in dataset.items
    )
    write_rows(Store(folder.absolute()), "items.jsonl", items)
    write_folder(
        folder, _queries(dataset, judge.queries, labels), labels, _lineage(judge, agreement)
    )
    grades = Counter(row["grade"] for row in labels if row["source"] == "judge")
    return JudgedLabels(
        folder,
        sum(grades.values()),
        {level: grades[at] for at, level in enumerate(LEVELS)},
        dict(+judge.counts),
        agreement,
    )


def _labels(judge: Judge) -> Iterator[dict[str, Any]]:
    """Records of the judge, by query."""
    pairs = sorted(judge.pairs, key=lambda pair: pair.id)
    for pair in pairs:
        if pair.id in judge.grades:
            yield {
                "query": pair.query.id,
                "item": pair.item.id,
                "grade": judge.grades[pair.id],
                "source": "judge",
            }


def _known(dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Records of the labels of people, on the judge's scale."""
    for query in dataset.all_queries():
        for item in sorted(dataset.judged[query.id]):
            grade = LEVELS.index("good" if item in dataset.relevant[query.id] else "bad")
            yield {"query": query.id, "item": item, "grade": grade, "source": "known"}


def _queries(
    dataset: Dataset, judged: Sequence[Query], labels: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Records of the queries that are judged or labelled. The splits of the data stay where every
    query with a relevant item has one.
    """
    splits = {query.id: split for split in SPLITS for query in dataset.queries.get(split, ())}
    relevant = {row["query"] for row in labels if row["grade"] >= RELEVANT}
    kept = relevant <= splits.keys()
    every = {query.id: query for query in (*dataset.all_queries(), *judged)}
    named = {row["query"] for row in labels}
    return [
        {
            "id": query.id,
            "text": query.text,
            "weight": query.weight,
            **({"split": splits[query.id]} if kept and query.id in splits else {}),
        }
        for query in every.values()
        if query.id in named
    ]


def _lineage(judge: Judge, agreement: Agreement | None) -> dict[str, Any]:
    return {
        "source": "judge",
        "judge": dict(judge.generator.fingerprint),
        "prompt": GRADES + PAIR + FORM,
        "counts": dict(+judge.counts),
        "agreement": agreement and asdict(agreement),
        "labels_of": judge.workspace.dataset.dataset_hash,
        **({"before": dict(earlier)} if (earlier := judge.workspace.dataset.lineage) else {}),
    }


def choose_queries(dataset: Dataset, most: int) -> list[Query]:
    """The most frequent queries, by their weights; equal ones by a hash of the text."""
    every = [*dataset.all_queries(), *dataset.unlabelled]
    ordered = sorted(every, key=lambda query: (-query.weight, place(query.text), query.id))
    return ordered[:most]


def pool(workspace: Workspace, queries: Sequence[Query]) -> list[QueryItem]:
    """The pairs of queries and what retrievers find that nobody judged."""
    dataset = workspace.dataset
    rows = {item.id: row for row, item in enumerate(dataset.items)}
    runs, _ = runs_of(workspace, queries, _DEPTH)
    pairs = []
    for query in queries:
        pooled = {id_ for run in runs.values() for id_ in run.get(query.id, ())[:_DEPTH]}
        left = sorted(pooled - dataset.judged.get(query.id, {}).keys())
        pairs += [QueryItem(query, dataset.items[rows[id_]]) for id_ in left]
    return pairs


def known_sample(dataset: Dataset, size: int) -> list[QueryItem]:
    """Pairs that people judged, drawn by a hash: half of them relevant where there are enough of
    both kinds.
    """
    every = [(query, id_) for query in dataset.all_queries() for id_ in dataset.judged[query.id]]
    every.sort(key=lambda one: (place(f"{one[0].id}\t{one[1]}"), one[0].id, one[1]))
    sides = [
        [one for one in every if (one[1] in dataset.relevant[one[0].id]) == kind]
        for kind in (True, False)
    ]
    irrelevant = sides[1][: max(size // 2, size - len(sides[0]))]
    chosen = [*sides[0][: size - len(irrelevant)], *irrelevant]
    rows = {item.id: row for row, item in enumerate(dataset.items)}
    return [QueryItem(query, dataset.items[rows[id_]]) for query, id_ in chosen]
