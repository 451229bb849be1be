"""Whether a data set's labels can be trusted, and what to do next: train, label more, or keep BM25.

`examine` measures and advises; `gain` checks labels and texts, and has the retrievers.
`cogr.datasets.inspection` only counts, and needs none of these modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cogr.datasets.inspection import Report, Verdict, inspect_dataset
from cogr.errors import MissingExtraError
from cogr.records import Dataset, Say
from indexers.inspection.gain import (
    Ceiling,
    Disagreement,
    Gap,
    Holes,
    Leakage,
    Searches,
    ceiling,
    disagreement,
    holes,
    leakage,
    sample,
    vocabulary_gap,
)
from indexers.workspace import Workspace

MOST_QUERIES = 500
"""Most queries for which retrievers are examined, chosen by a hash."""
MOST_ITEMS = 300_000
"""Most items for searches: with more they would take gigabytes."""
_DEPTH = 10
_FEW_JUDGED = 0.5
_NAMED = 10


@dataclass(frozen=True)
class Findings:
    """The results of `examine`. An unmeasured one is None, with the reason in `not_measured`."""

    counts: Report
    leakage: Leakage
    disagreement: Disagreement
    gap: Gap
    holes: Mapping[str, Holes]
    ceiling: Ceiling | None
    label_next: Sequence[str]
    lineage: Mapping[str, Any]
    not_measured: Mapping[str, str]
    verdict: Verdict
    advice: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """In types that JSON knows: the counts and the one verdict, and the rest under `trust`."""
        found = asdict(self)
        counts = found.pop("counts")
        judged = {name: found.pop(name) for name in ("verdict", "advice")}
        return {**counts, **judged, "trust": found}


def examine(workspace: Workspace, say: Say = lambda _: None) -> Findings:
    """Measure what can be measured with what is installed, and advise."""
    dataset, missing = workspace.dataset, dict[str, str]()
    say("counting")
    counts = inspect_dataset(dataset)
    leaks = leakage(dataset)
    say("searching")
    searches = _searches(workspace, missing)
    looked_at = sample(dataset.all_queries(), MOST_QUERIES)
    found = holes(searches, looked_at, dataset, _DEPTH) if searches else {}
    missing |= searches.without if searches else {}
    best = ceiling(searches, dataset, looked_at) if searches and looked_at else None
    next_ = _label_next(dataset, searches) if searches else []
    noise, gap = disagreement(dataset), vocabulary_gap(dataset)
    negative = any(len(dataset.judged[id_]) > len(ids) for id_, ids in dataset.relevant.items())
    bm25 = found.get("bm25") if negative else None
    few = bm25 is not None and bm25.queries > 0 and bm25.judged_share < _FEW_JUDGED
    verdict, advice = _verdict(counts, next_, few=few)
    if few and bm25 is not None:
        advice.append(
            f"Only {bm25.judged_share:.0%} of BM25's first {_DEPTH} items are judged: figures on "
            "these labels are too low for any search that finds other items; compare by judged "
            "items alone (judged_f1), or judge what is found (cogr-train labels judge)."
        )
    if found and not negative:
        advice.append(
            "The labels name relevant items only, so that an item that nobody judged counts as "
            "irrelevant: judge what is found (cogr-train labels judge) to see how many are not."
        )
    advice += _remarks(leaks, noise, gap, workspace.settings.dataset.split_by)
    return Findings(
        counts,
        leaks,
        noise,
        gap,
        found,
        best,
        next_,
        dataset.lineage,
        missing,
        verdict,
        advice,
    )


def _searches(workspace: Workspace, missing: dict[str, str]) -> Searches | None:
    if len(workspace.dataset.items) > MOST_ITEMS:
        missing["retrievers"] = f"more than {MOST_ITEMS:,} items"
        return None
    try:
        return Searches(workspace)
    except MissingExtraError as error:
        missing["retrievers"] = str(error)
        return None


def _label_next(dataset: Dataset, searches: Searches) -> list[str]:
    asked = sorted(dataset.unlabelled, key=lambda query: (-query.weight, query.id))[:MOST_QUERIES]
    queries = [*asked, *sample(dataset.all_queries(), MOST_QUERIES)]
    if not queries:
        return []
    shares = {}
    for query in queries:
        hits = searches.bm25(query, _DEPTH)
        judged = dataset.judged.get(query.id, {})
        holes_ = sum(id_ not in judged for id_ in hits) / _DEPTH
        shares[query.text] = query.weight * holes_
    ordered = sorted(shares, key=lambda text: (-shares[text], text))
    return [text for text in ordered if shares[text] > 0][:_NAMED]


def _remarks(leaks: Leakage, noise: Disagreement, gap: Gap, split_by: str) -> list[str]:
    found = []
    if leaks.share > 0.02:
        advice = (
            "put near-equal queries into one split (their field split)"
            if split_by == "cluster"
            else 'set dataset.split_by = "cluster", or group the splits'
        )
        found.append(
            f"{leaks.share:.0%} of the test and dev queries have a near-equal training query, so "
            f"that figures are too high: {advice}."
        )
    if noise.compared >= 20 and noise.share > 0.1:
        found.append(
            f"Labels disagree in {noise.share:.0%} of {noise.compared:,} comparisons of near-equal "
            "queries or items: write down when an item is relevant, and judge these again."
        )
    if gap.pairs and gap.share > 0.3:
        found.append(
            f"{gap.share:.0%} of the relevant pairs share no word: no search for words finds them, "
            "which is what learned keywords are for."
        )
    return found


def _verdict(counts: Report, next_: Sequence[str], *, few: bool) -> tuple[Verdict, list[str]]:
    if counts.verdict == "train" and few:
        which = f": first {', '.join(map(repr, next_[:5]))}" if next_ else ""
        return "label more", [f"Label more before training{which}."]
    return counts.verdict, [*counts.advice]
