"""What a team has before CoGR comes: an index of products, a search, and what shoppers did.

Made up here from the demo's shop, so that the truth is known: `team.py make URL FOLDER` fills the
indexes `products`, `ubi_queries` and `ubi_events`. `team.py truth FOLDER` writes the hidden truth
beside what the commands made of the clicks: the same queries, labelled by hand and split.
`team.py show FOLDER` prints the figures that were measured by it.

Shoppers of a training query look at place k of 20 with chance 1 / k^0.7 and click what they look
at with chance 0.5 where it is relevant and 0.05 where not. The search of the team is OpenSearch's
own, but at every other place stands an item that somebody pinned by hand, half of them well: what
is never shown can't be clicked. A test query is asked by three shoppers, too few for labels.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from opensearchpy import OpenSearch, helpers

from trainers.demo import CATALOGUE

SHOPPERS, RARE, PLACES, DAYS = 80, 3, 20, 30
TODAY = {"query": {"multi_match": {"query": "{{query}}", "fields": ["name^2", "copy.long"]}}}
Records = list[dict[str, Any]]


def records(path: Path) -> Records:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")


def relevant() -> dict[str, set[str]]:
    """Query id -> ids of its relevant items."""
    found: dict[str, set[str]] = {}
    for label in records(CATALOGUE / "labels.jsonl"):
        found.setdefault(label["query"], set()).add(label["item"])
    return found


def make(url: str, folder: Path) -> None:
    """Fill the team's indexes."""
    client = OpenSearch(url, timeout=60)
    for index in ("products", "ubi_queries", "ubi_events"):
        client.indices.delete(index=index, ignore_unavailable=True)
    items = records(CATALOGUE / "items.jsonl")
    helpers.bulk(client, (product(item) for item in items), refresh=True)
    helpers.bulk(client, behaviour(client, [item["id"] for item in items]), refresh=True)
    write(folder / "today.json", [TODAY])


def product(item: dict[str, str]) -> dict[str, Any]:
    """A document as shops have them: objects, HTML, a date."""
    source = {
        "name": item["title"],
        "copy": {"long": f"<p>{item['text']}</p>"},
        "modified": "2026-01-31T12:00:00Z",
    }
    return {"_index": "products", "_id": item["id"], "_source": source}


def behaviour(client: OpenSearch, items: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Searches and clicks, as UBI 1.3 records them."""
    draw, truth, second = random.Random(0), relevant(), 1_780_000_000
    for query in records(CATALOGUE / "queries.jsonl"):
        shown = results(client, query["text"], items, truth[query["id"]], draw)
        for shopper in range(RARE if query["split"] == "test" else SHOPPERS):
            second += draw.randrange(20)
            id_ = f"{query['id']}-{shopper}"
            common = {
                "query_id": id_,
                "client_id": f"client-{draw.randrange(5_000)}",
                "user_query": query["text"],
                "timestamp": (second + shopper % DAYS * 86_400) * 1000,
            }
            yield {"_index": "ubi_queries", **common, "query_response_hit_ids": shown}
            for place, item in enumerate(shown, start=1):
                clicks = 0.5 if item in truth[query["id"]] else 0.05
                if draw.random() < place**-0.7 * clicks:
                    about = {"object": {"object_id": item}, "position": {"ordinal": place}}
                    event = {**common, "action_name": "click", "event_attributes": about}
                    yield {"_index": "ubi_events", **event}


def results(
    client: OpenSearch, text: str, items: Sequence[str], wanted: set[str], draw: random.Random
) -> list[str]:
    """What today's search shows."""
    body = json.loads(json.dumps(TODAY).replace("{{query}}", text))
    hits = client.search(index="products", body={**body, "size": PLACES})["hits"]["hits"]
    pinned = draw.sample(sorted(wanted), min(len(wanted), PLACES // 4))
    pinned += draw.sample(list(items), PLACES // 2 - len(pinned))
    draw.shuffle(pinned)
    found = [hit["_id"] for hit in hits]
    mixed = [item for pair in zip(found, pinned, strict=False) for item in pair]
    return list(dict.fromkeys([*mixed, *found, *pinned]))[:PLACES]


def truth(folder: Path) -> None:
    """`truth/`: what the commands imported, with the hidden labels and splits."""
    known, labels = relevant(), []
    hidden = {query["text"]: query for query in records(CATALOGUE / "queries.jsonl")}
    queries = []
    for query in records(folder / "data/queries.jsonl"):
        if one := hidden.pop(query["text"], None):
            queries.append({"id": query["id"], "text": query["text"], "split": one["split"]})
            labels += [{"query": query["id"], "item": item} for item in sorted(known[one["id"]])]
    write(folder / "truth/items.jsonl", records(folder / "data/items.jsonl"))
    write(folder / "truth/queries.jsonl", queries)
    write(folder / "truth/labels.jsonl", labels)


def show(folder: Path) -> None:
    """F1 of the retrieved sets of the test queries, against the hidden truth."""
    clicks, best = (
        json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("clicks", "best")
    )
    rows = {
        "BM25": next(row for row in clicks["baselines"] if row["name"] == "bm25"),
        "CoGR, labels from clicks": clicks,
        "CoGR, the true labels": best,
    }
    for name, row in rows.items():
        print(f"{name:26} F1 {row['f1']:.3f}  P {row['p']:.3f}  R {row['r']:.3f}")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], Path(sys.argv[3]))
    else:
        {"truth": truth, "show": show}[sys.argv[1]](Path(sys.argv[2]))
