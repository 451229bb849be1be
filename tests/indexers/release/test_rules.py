"""A merchant's rules: what they do to results, that they go live and back with snapshots, and that
a bad file changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cogr.keywords import normalise, parse, query_key, self_keyword
from cogr.snapshots import Row
from indexers.release.rules import MAX_PINS, Rule, Rules
from indexers.search import together
from tests.commands import Command, rebuilt_pair, sets
from tests.indexers.backends.opensearch_worlds import flags_of
from tests.shops import SCRIPTED, write_jsonl, write_sample_part, write_shop

HEADER = "rule,query,item,keyword\n"
EXAMPLE = f"""{HEADER}pin,living room sofa,c,
pin,living room sofa,b,
bury,living room sofa,d,
pin,Summer Sale!,b,
add,,b,dining
add,floor lamp,,brass
forbid,,a,green
pin,floor lamp,gone,
synonym,settee,,sofa
"""


@pytest.fixture(params=["memory", pytest.param("opensearch", marks=pytest.mark.server)])
def backend(request: pytest.FixtureRequest) -> Sequence[str]:
    """Flags of a backend: the mirror, a cluster."""
    if request.param == "memory":
        return ()
    return flags_of(request.getfixturevalue("cluster").settings)


def found(cogr_index: Command, text: str, flags: Sequence[str]) -> list[str]:
    answer = cogr_index("search", text, "--keywords-only", "--json", *flags).json
    return [hit["id"] for hit in answer["hits"]]


def test_rules_go_live_on_both_sides_and_back(
    shop: Path, cogr_index: Command, backend: Sequence[str]
) -> None:
    flags = (*backend, "--set", "publish.tolerance=1")
    rebuilt_pair(cogr_index, *flags)
    before = found(cogr_index, "living room sofa", flags)
    assert {"a", "d"} <= {*before}
    (shop / "rules.csv").write_text(EXAMPLE)
    ruled = (*flags, "--set", "publish.rules=rules.csv")
    ended = cogr_index("publish", "--json", *ruled)
    assert ended.status == 0, ended.err
    assert "pin living room sofa, c: 1 items\n" in ended.err
    idle = "add floor lamp, brass; forbid a, green; pin floor lamp, gone"
    assert f"Warning: 3 rules move no item: {idle}.\n" in ended.err
    assert None not in ended.json["before"].values()
    now = found(cogr_index, "living room sofa", flags)
    assert now[:2] == ["c", "b"]
    assert "a" in now[2:]
    assert "d" not in now
    # Not a query of the data set.
    assert found(cogr_index, "summer sale", flags)[0] == "b"
    assert "b" in found(cogr_index, "dining", flags)
    assert "c" in found(cogr_index, "floor lamp", flags)
    sofas = {*found(cogr_index, "sofa", flags)}
    assert {*found(cogr_index, "settee", flags)} == sofas != set()
    explained = cogr_index("search", "Living room sofa", "--explain", *flags)
    assert "Rules: pin living room sofa, c; pin living room sofa, b; bury" in explained.out
    assert "[pin 1 for living room sofa]" in explained.out
    assert cogr_index("verify", *flags).status == 0
    # Rules are no weights of a ranker.
    plain = found(cogr_index, "living room sofa", (*flags, "--set", "keywords.weights=false"))
    assert (plain[:2], {*plain}) == (["c", "b"], {*now})
    # The same rules again: nothing changes. Without them in a rebuild: they are gone.
    again = cogr_index("publish", "--json", *ruled).json
    assert again["serving"] == again["before"]
    assert cogr_index("rollback", *flags).status == 0
    assert found(cogr_index, "living room sofa", flags) == before


def test_a_query_that_no_snapshot_has_keeps_what_its_fit_writes(
    tmp_path: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_sample_part(tmp_path).parent)
    flags = sets("generator.name=statistical", "publish.tolerance=1")
    rebuilt_pair(cogr_index, *flags)
    before = cogr_index("search", "steel", "--json", *flags).json
    Path("rules.csv").write_text(HEADER + "pin,steel,item-001,\nsynonym,steel,,ferrous\n")
    assert cogr_index("publish", *flags, "--set", "publish.rules=rules.csv").status == 0
    steel = cogr_index("search", "steel", "--json", *flags).json
    ferrous = cogr_index("search", "ferrous", "--json", *flags).json
    assert (before["source"], steel["source"]) == ("model", "index")
    assert {"steel"} < {*before["keywords"]} < {*steel["keywords"]}
    assert {*before["keywords"]} < {*ferrous["keywords"]}


def test_no_title_and_no_keyword_takes_a_pin() -> None:
    rules = Rules((Rule("pin", "desk", "a"), Rule("bury", "desk", "b")))
    words = [
        *rules.item_row(Row("a", "A", ())).keywords,
        *rules.item_row(Row("b", "B", ())).keywords,
    ]
    assert len(words) == 2
    query = rules.query_row(Row("q", "Desk", ()))
    assert {*words} == {*query.keywords}
    for word in words:
        for said in (word, word.upper(), f" {word},", f'"{word}"', word[1:-1], f"［{word[1:-1]}］"):
            assert not {*words} & {self_keyword(said), normalise(said), *parse(said)}


def test_rules_of_queries_that_differ_in_punctuation_alone() -> None:
    rules = Rules((Rule("pin", query_key("2. Liga"), "a"), Rule("pin", query_key(".jar"), "b")))
    for text, pinned in (("2. LIGA", 1), ("3. Liga", 0), (".jar", 1), ("jar", 0), ("2 liga", 0)):
        assert len(rules.query_row(Row("q", text, ())).keywords) == pinned


def test_an_update_starts_from_what_the_generator_wrote(shop: Path, cogr_index: Command) -> None:
    (shop / "rules.csv").write_text(HEADER + "forbid,,,sofa\nadd,,b,terrace\n")
    scripted = sets("generator.name=scripted")
    ruled = (*scripted, *sets("publish.rules=rules.csv", "publish.tolerance=1"))
    made = cogr_index("rebuild", "--side", "item", "--json", *ruled)
    assert made.status == 0, made.err
    assert found(cogr_index, "sofa", scripted) == []
    assert found(cogr_index, "terrace", scripted) == ["b"]
    (shop / "rules.csv").write_text(HEADER + "forbid,,,oak\n")
    write_jsonl(shop / "changes.jsonl", [{"op": "delete", "id": "d"}])
    ended = cogr_index("update", "--side", "item", "--changed", "changes.jsonl", *ruled)
    assert ended.status == 0, ended.err
    assert found(cogr_index, "sofa", scripted) == ["a"]
    assert found(cogr_index, "oak", scripted) == found(cogr_index, "terrace", scripted) == []
    pruned = cogr_index("prune", "--keep", "0", "--files", "--dry-run", "--json", *scripted).json
    assert any(why.startswith("the rules of") for why in pruned["in_use"].values())


BAD = [
    ("pin,sofa,,\n", "rules.csv, line 2: pin takes query and item; fill in only these"),
    ("hide,sofa,a,\n", "line 2: 'hide' is not a rule; write one of pin, bury, add"),
    ("add,sofa,,\n", "line 2: add takes query and keyword or keyword and item"),
    ("add,,a,red, blue\n", "line 2: the row has 5 columns where 4 are expected"),
    ('add,,a,"red, blue"\n', "line 2: 'red, blue' is not one keyword"),
    ("pin,...,a,\n", "line 2: '...' is not one query"),
    ("pin,sofa,a,\nbury,Sofa,a,\n", "line 3: bury sofa, a contradicts"),
    ("forbid,,a,red\nadd,,a,red\n", "line 3: add a, red contradicts"),
    ("".join(f"pin,sofa,i{n},\n" for n in range(MAX_PINS + 1)), "line 12: 'sofa' has more than"),
]


def test_a_bad_file_is_refused_and_nothing_is_written(shop: Path, cogr_index: Command) -> None:
    assert cogr_index("rebuild", "--side", "item").status == 0

    def stored() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (shop / ".cogr").rglob("*") if path.is_file()}

    before = stored()
    for rows, sentence in BAD:
        (shop / "rules.csv").write_text(HEADER + rows)
        cogr_index("publish", "--set", "publish.rules=rules.csv").check_refused(sentence)
    cogr_index("publish", "--set", "publish.rules=no.csv").check_refused(
        "There is no file of rules"
    )
    cogr_index("publish").check_refused("No snapshot given")
    assert stored() == before


def test_synonyms_lend_each_other_their_keywords_and_items_get_both_spellings() -> None:
    rules = Rules((Rule("synonym", "couch", keyword="sofa"), Rule("forbid", "couch", keyword="x")))
    sofa = Row("q", "Sofa", ("seat", "x"), weights=(2.0, 1.0, 1.0))
    assert rules.readings("green couch") == ["green couch", "green sofa"]
    assert rules.also("green couch") == ("green sofa",)
    couch = together("couch", [rules.query_row(Row("c", "couch", ("x",))), sofa])
    assert couch is not None
    assert couch.weighted == {"couch": 1, "sofa": 1, "seat": 2, "x": 1}
    item = rules.item_row(Row("i", "Title", ("green couch", "couchette")))
    assert item.keywords == ("green couch", "couchette", "green sofa")


CHEMICALS = [
    {"id": "CH-1", "title": "Isopropanol 500 ml", "text": "A solvent"},
    {"id": "CH-2", "title": "Isopropanol 5 l", "text": "A solvent"},
    {"id": "CH-3", "title": "Ethanol 500 ml", "text": "A solvent"},
]


def set_of(cogr_index: Command, text: str, flags: Sequence[str]) -> set[str]:
    answer = cogr_index("search", text, "--json", *flags).json
    return {hit["id"] for hit in answer["hits"] if hit["tier"] == "set"}


MOVED: Sequence[tuple[str, Mapping[str, set[str]]]] = [
    ("synonym,ipa,,isopropanol", {"ipa": {"CH-1", "CH-2"}, "ipa 500 ml": {"CH-1"}}),
    ("add,ipa,,isopropanol", {"ipa": {"CH-1", "CH-2"}, "ipa 500 ml": set()}),
    ("add,ipa,,propanone", {"ipa": set(), "ipa 500 ml": set()}),
    ("forbid,,,propanone", {"ipa": set()}),
]


def test_a_rule_reaches_texts_too_and_says_what_it_moves(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cogr_index: Command,
    backend: Sequence[str],
) -> None:
    monkeypatch.chdir(write_shop(tmp_path, CHEMICALS, [], [], SCRIPTED).parent)
    flags = (*backend, *sets("publish.tolerance=1", "serving.live=none"))
    rebuilt_pair(cogr_index, *flags)
    assert set_of(cogr_index, "ipa", flags) == set()
    for rule, moved in MOVED:
        Path("rules.csv").write_text(f"{HEADER}{rule}\n")
        said = cogr_index("publish", *flags, "--set", "publish.rules=rules.csv").err
        assert {text: set_of(cogr_index, text, flags) for text in moved} == dict(moved)
        told = ", ".join(filter(None, rule.split(",")[1:]))
        assert f"{rule.partition(',')[0]} {told}: {len(moved['ipa'])} items\n" in said
        assert ("Warning: 1 rules move no item" in said) == (not moved["ipa"])
