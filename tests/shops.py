"""Shops for tests: the one place that makes data sets, as files with a configuration or in
memory.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cogr.datasets import load_dataset
from cogr.records import SIDES, Dataset, Item, Query, Side, types_of
from cogr.snapshots import Provenance, Row, Snapshot
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.rebuild.assembly import Rebuilt, freeze
from indexers.rebuild.plan import Job, generate_missing, make_plan
from indexers.rebuild.run import RebuildRequest, RebuildRun
from indexers.telemetry.terminal import progress_bar
from indexers.workspace import Workspace
from trainers.demo import CATALOGUE

Record = Mapping[str, Any]
Records = tuple[list[Record], list[Record], list[Record]]
"""Items, queries and labels."""
DATASET = '[dataset]\nloader = "jsonl"\npath = "data"\n'
SCRIPTED = '[generator]\nname = "scripted"\n'
EXTRACTIVE = '[generator]\nname = "extractive"\n'
CONFIGURATION = DATASET + EXTRACTIVE
FORGIVING = SCRIPTED + "[rebuild]\nmax_failure_share = 0.05\n"
"""Publishes though one item in twenty was set aside."""
TINY_TRAINING = """
store = "store"
[dataset]
loader = "jsonl"
path = "data"
dev_share = 0.2
[keywords]
k_max = 10
[prompts]
templates = "bare"
[generator.sampling]
temperature = 0
max_tokens = 16
[rebuild]
max_failure_share = 1.0
[publish]
fields = ["price"]
[training]
invented_queries = 5
rules = "paper"
[training.sft]
item_keywords = 3
query_keywords = 3
epochs = 2
learning_rate = 3e-3
[training.rollouts]
generations = 4
max_tokens = 12
[training.query]
max_steps = 2
prompts_per_step = 4
learning_rate = 1e-4
[training.item]
max_steps = 2
prompts_per_step = 4
learning_rate = 1e-4
"""
"""Trains a very small model in seconds."""
COLOURS = {"red": "crimson", "blue": "azure", "green": "olive"}
THINGS = {"car": "vehicle", "hat": "headgear", "cup": "mug"}
"""Shoppers' words and sellers', in `colour_shop`."""


# Files


def write_jsonl(path: Path, records: Iterable[Record]) -> Path:
    """Replace a file at once: others may read it. Returns it."""
    unfinished = path.with_name(f"{path.name}.new")
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    unfinished.write_text("".join(lines), "utf-8")
    return unfinished.replace(path)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write_data(folder: Path, **records: Iterable[Record]) -> Path:
    """Write `{name}.jsonl` for each part of a data set: items, queries, labels, pairs. Returns the
    folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in records.items():
        write_jsonl(folder / f"{name}.jsonl", part)
    return folder


def write_beir(
    folder: Path, items: Iterable[Record], queries: Iterable[Record], labels: Iterable[Record]
) -> Path:
    """Write the same records in BEIR's layout: a file of qrels for each split that has labels.
    Returns the folder.
    """
    asked = list(queries)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    texts = ({"_id": i["id"], "title": i["title"], "text": i["text"]} for i in items)
    write_jsonl(folder / "corpus.jsonl", texts)
    texts = ({"_id": q["id"], "text": q["text"], "metadata": {}} for q in asked)
    write_jsonl(folder / "queries.jsonl", texts)
    split_of = {q["id"]: q["split"] for q in asked}
    qrels: dict[str, list[str]] = {}
    for label in labels:
        rows = qrels.setdefault(split_of[label["query"]], ["query-id\tcorpus-id\tscore"])
        rows.append(f"{label['query']}\t{label['item']}\t{label['grade']}")
    for split, rows in qrels.items():
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    return folder


def write_shop(
    folder: Path,
    items: Iterable[Record],
    queries: Iterable[Record],
    labels: Iterable[Record],
    configuration: str = "",
) -> Path:
    """Write `data/*.jsonl` and `cogr.toml`; the latter's path. `configuration` continues
    the table [dataset], or has it.
    """
    write_data(folder / "data", items=items, queries=queries, labels=labels)
    whole = configuration if "[dataset]" in configuration else DATASET + configuration
    (folder / "cogr.toml").write_text(whole)
    return folder / "cogr.toml"


# The small shop: four items and three queries

ITEMS = [
    {"id": "a", "title": "Velvet sofa", "text": "A green velvet sofa for the living room"},
    {"id": "b", "title": "Oak table", "text": "A solid oak dining table"},
    {"id": "c", "title": "Floor lamp", "text": "A brass floor lamp for reading"},
    {"id": "d", "title": "Leather sofa", "text": "A brown leather sofa, living room classic"},
]
QUERIES = [
    {"id": "q1", "text": "green couch", "split": "train"},
    {"id": "q2", "text": "living room sofa", "split": "test"},
    {"id": "q3", "text": "floor lamp", "split": "test"},
]
LABELS = [
    {"query": "q1", "item": "a", "grade": 1},
    {"query": "q2", "item": "a", "grade": 1},
    {"query": "q2", "item": "d", "grade": 1},
    {"query": "q3", "item": "c", "grade": 1},
]


# Things: a shop of any size


def thing(number: int, id_: str, more: str = "") -> dict[str, str]:
    """An item that shares its words with others, and those of `more`."""
    text = f"word{number % 11} more{number % 5} {more}".rstrip()
    return {"id": id_, "title": f"thing {number}", "text": text}


def thing_records(items: int) -> Records:
    """Things of eleven words, and a query for each word."""
    words = range(11)
    return (
        [thing(n, f"i{n}") for n in range(items)],
        [{"id": f"q{n}", "text": f"word{n}", "split": "train" if n < 8 else "test"} for n in words],
        [{"query": f"q{n % 11}", "item": f"i{n}", "grade": 1} for n in range(items)],
    )


def write_thing_shop(folder: Path, items: int = 240, configuration: str = FORGIVING) -> Path:
    """The records of `thing_records` as a shop."""
    return write_shop(folder, *thing_records(items), configuration)


# A forum: topics without labels

TOPICS, LABELLED, EACH = 60, 45, 4
"""Topics of a forum, those with labels, and questions and answers of each."""


def forum_records() -> Records:
    """Answers without titles, and questions, those of a topic for the same answers. Test queries
    are of topics without labels.
    """
    draw, items, queries, labels = random.Random(0), [], [], []
    for topic in range(TOPICS):

        def said(own: int, common: int, topic: int = topic) -> str:
            words = [9 * topic + n for n in draw.sample(range(9), own)]
            return " ".join(map(_spelled, words + draw.sample(range(900, 940), common)))

        items += [{"id": f"a{topic}-{n}", "title": "", "text": said(4, 6)} for n in range(EACH)]
        for n in range(EACH):
            asked = f"q{topic}-{n}"
            split = "train" if topic < LABELLED else "test"
            queries.append({"id": asked, "text": said(2, 3), "split": split})
            labels += [{"query": asked, "item": f"a{topic}-{n}", "grade": 1} for n in range(EACH)]
    return items, queries, labels


def _spelled(number: int) -> str:
    """A word of its own, without digits."""
    syllables = ["ba", "ke", "ri", "mo", "du", "fa", "se", "ni", "lo", "tu"]
    return "".join(syllables[int(digit)] for digit in f"{number:03}") + "x"


# A catalogue of parts: sizes, threads, voltages, in three languages

_EIGHTHS = [(1, 8), (1, 4), (3, 8), (1, 2), (3, 4), (5, 8)]
_INCHES = ('{0}/{1}"', "{0}/{1} in", "{0}/{1} inch", "{0}/{1}-Zoll", "{0}/{1}″")
_PARTS: Mapping[str, tuple[tuple[str, str, str], tuple[str, ...], list[tuple[Any, ...]]]] = {
    "HB": (
        ("hex bolt", "Sechskantschraube", "vis hexagonale"),
        ("M{0}x{1}", "M{0} x {1} mm", "m{0} {1}mm", "M{0}×{1}"),
        [(size, length) for size in (4, 5, 6, 8, 10, 12) for length in (10, 16, 20, 25, 30, 40)],
    ),
    "TF": (
        ("tee fitting", "T-Stück", "raccord en té"),
        tuple(f"{inches} {{2}}" for inches in _INCHES),
        [(n, d, thread) for n, d in _EIGHTHS for thread in ("NPT", "BSP")],
    ),
    "EL": (
        ("elbow", "Winkel", "coude"),
        tuple(f"{inches} {{2}}" for inches in _INCHES),
        [(n, d, thread) for n, d in _EIGHTHS for thread in ("NPT", "BSP")],
    ),
    "RL": (
        ("relay", "Relais", "relais"),
        ("{0}vdc {1}A", "{0} V DC {1} A", "{0}VDC, {1}A", "{0} v dc {1} amp"),
        [(volts, amps) for volts in (5, 12, 24, 48, 110) for amps in (2, 6, 10, 16)],
    ),
    "FC": (
        ("filter cartridge", "Filterpatrone", "cartouche filtrante"),
        ("{0} µm {1} l/min", "{0}um {1}l/min", "{0} micron, {1} litre/min"),
        [(size, flow) for size in (1, 5, 10, 25, 50) for flow in (2, 5, 20)],
    ),
    "BK": (
        ("beaker", "Becherglas", "bécher"),
        ("{0}.{1} l", "{0},{1}L", "{0}.{1} liter", "{0}.{1}-litre"),
        [(whole, tenth) for whole in (1, 2, 3) for tenth in (1, 2, 5, 7)],
    ),
}
"""Code -> names, spellings and sizes of a kind of part."""


def parts_records() -> Records:
    """5,000 parts with their numbers, and queries by name, size and number. A size is asked for in
    any spelling and language. The 30 test queries are ten part numbers or beginnings of some, ten
    sizes, and ten sizes of a kind of part.
    """
    draw = random.Random(0)
    kinds = [(code, size) for code, (_, _, sizes) in _PARTS.items() for size in sizes]
    rows: list[dict[str, str]] = []
    of_kind: dict[Any, list[str]] = {}

    def sized(code: str, size: tuple[Any, ...]) -> str:
        return draw.choice(_PARTS[code][1]).format(*size)

    def named(code: str, size: tuple[Any, ...]) -> str:
        return f"{draw.choice(_PARTS[code][0])} {sized(code, size)}"

    for number in range(5000):
        code, size = draw.choice(kinds)
        series, suffix = draw.choice("KTXZ"), f"{draw.choice('ABC')}{number % 10}"
        sku = f"{code}{series}-{1000 + 7 * number % 8999}-{suffix}"
        steel = draw.choice(("stainless steel", "zinc", "brass", "Edelstahl", "laiton"))
        rows.append(
            {"id": f"i{number}", "title": f"{named(code, size)} {sku}", "text": steel, "sku": sku}
        )
        of_kind.setdefault((code, size), []).append(f"i{number}")
    asked: list[tuple[str, str, list[str]]] = []
    for kind in draw.choices(kinds, k=200):
        asked.append((named(*kind), "train", of_kind[kind]))
    for place, row in enumerate(draw.sample(rows, 10)):
        begun = row["sku"][: 7 if place % 2 else None]
        same = [one["id"] for one in rows if one["sku"].startswith(begun)]
        asked.append((begun.replace("-", draw.choice(("", " ", "-"))).lower(), "test", same))
    for place, (code, size) in enumerate(draw.sample(kinds, 20)):
        if place % 2:
            asked.append((named(code, size), "test", of_kind[code, size]))
        else:
            same = [id_ for kind in kinds if kind[1] == size for id_ in of_kind[kind]]
            asked.append((sized(code, size), "test", same))
    queries = [
        {"id": f"q{n}", "text": text, "split": split} for n, (text, split, _) in enumerate(asked)
    ]
    labels = [
        {"query": f"q{n}", "item": id_, "grade": 1}
        for n, (*_, ids) in enumerate(asked)
        for id_ in ids
    ]
    return [{name: row[name] for name in ("id", "title", "text")} for row in rows], queries, labels


def sizes(dataset: Dataset) -> dict[str, int]:
    """How many queries each split has."""
    return {split: len(queries) for split, queries in dataset.queries.items()}


def in_memory(
    items: Iterable[Record], queries: Iterable[Record], labels: Iterable[Record]
) -> Dataset:
    """The records as a data set."""
    asked: dict[Any, list[Query]] = {"train": [], "dev": [], "test": []}
    for query in queries:
        asked[query["split"]].append(Query(query["id"], query["text"]))
    relevant: dict[str, set[str]] = {}
    for label in labels:
        relevant.setdefault(label["query"], set()).add(label["item"])
    kept = [Item(item["id"], item["title"], item["text"]) for item in items]
    sets = {id_: frozenset(ids) for id_, ids in relevant.items()}
    return Dataset("small", kept, asked, sets, {}, "6" * 64)


# The sample shop and parts of it


def sample_shop() -> Dataset:
    """All of it."""
    return load_dataset("jsonl", CATALOGUE)


def sample_part(items: int = 60, relevant: int = 2) -> Dataset:
    """The first items by their titles, and the queries with so many relevant ones among them."""
    whole = sample_shop()
    kept = [Item(item.id, item.title) for item in whole.items[:items]]
    ids = {item.id for item in kept}
    labels = {query: found & ids for query, found in whole.relevant.items()}
    labels = {query: found for query, found in labels.items() if len(found) >= relevant}
    queries = {
        split: [query for query in found if query.id in labels]
        for split, found in whole.queries.items()
    }
    return replace(whole, items=kept, queries=queries, relevant=labels, judged={})


def catalogue_records() -> Records:
    """All of it, as its files have it."""
    items, queries, labels = (
        read_jsonl(CATALOGUE / f"{name}.jsonl") for name in ("items", "queries", "labels")
    )
    return items, queries, labels


def sample_records(items: int) -> Records:
    """The first items, with prices, the queries that keep a relevant one, and labels."""
    catalogue, queries, labels = catalogue_records()
    kept = [{**item, "price": number + 0.5} for number, item in enumerate(catalogue[:items])]
    known = {item["id"] for item in kept}
    labels = [label for label in labels if label["item"] in known]
    asked = {label["query"] for label in labels}
    return kept, [query for query in queries if query["id"] in asked], labels


def write_sample_part(folder: Path, items: int = 60, configuration: str = TINY_TRAINING) -> Path:
    """The records of `sample_records` as a shop."""
    return write_shop(folder, *sample_records(items), configuration)


# Small ones in memory


def training_shop(
    items: Sequence[Item], queries: Mapping[str, tuple[str, Sequence[str]]]
) -> Dataset:
    """A data set of training queries only: id -> (text, ids of relevant items)."""
    asked = [Query(id_, text) for id_, (text, _) in queries.items()]
    relevant = {id_: frozenset(ids) for id_, (_, ids) in queries.items()}
    return Dataset("small", items, {"train": asked, "dev": [], "test": []}, relevant, {}, "5" * 64)


def colour_shop() -> Dataset:
    """Items are described by sellers' words, queries ask by shoppers'; one combination is never
    asked for.
    """
    combinations = [(colour, thing) for colour in COLOURS for thing in THINGS]
    items = [
        Item(
            f"{colour}-{thing}-{n}",
            f"{COLOURS[colour]} {THINGS[thing]}",
            f"maker{n} lot{thing[0]}{colour[0]}{n}",
        )
        for colour, thing in combinations
        for n in range(4)
    ]
    asked = [" ".join(both) for both in combinations if both != ("green", "cup")]
    queries = [Query(f"q-{text.replace(' ', '-')}", text) for text in asked]
    relevant = {query.id: frozenset(f"{query.id[2:]}-{n}" for n in range(4)) for query in queries}
    judged = {query: dict.fromkeys(ids, 1.0) for query, ids in relevant.items()}
    return Dataset("shop", items, {"train": queries}, relevant, judged, "hash")


# Their keywords


def frozen(
    store: Store, side: Side, rows: Sequence[Row], round_: int = 0, **generator: Any
) -> Snapshot:
    """A snapshot of rows in any order."""
    types = types_of(
        ((row.id, row.fields_json) for row in rows), {name for row in rows for name in row.fields}
    )
    provenance = Provenance(round=round_, generator=generator)
    return write_snapshot(store, side, sorted(rows, key=lambda row: row.id), provenance, types)


def rebuild_here(workspace: Workspace, side: Side = "item", **options: Any) -> Rebuilt:
    """Rebuild a side in this process, with options of the command."""
    return RebuildRun(workspace, RebuildRequest(side, **options), progress_bar, print).carry_out()


def rebuild_pair(workspace: Workspace, **options: Any) -> tuple[str, str]:
    """Rebuild both sides in this process; the ids of the item and the query snapshot."""
    items, queries = (rebuild_here(workspace, side, **options).snapshot.id for side in SIDES)
    return items, queries


def generate_and_freeze(job: Job) -> Rebuilt:
    """A job done in this process, without a lease."""
    plan = make_plan(job)
    return freeze(job, plan, generate_missing(job, plan))
