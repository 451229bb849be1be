"""The documentation is true: references are generated, configurations load, commands run."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from cogr.settings import load_settings
from tests.commands import MODULES, Command
from tests.documents import ROOT
from tests.shops import sample_records, write_beir, write_jsonl
from tests.trainers.labels.users import write_log

Program = dict[str, Any]
"""What a program defines, by name."""
FENCED = re.MULTILINE | re.DOTALL
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOP = (
    *("cogr", "indexers", "trainers", "ops", "charts"),
    *("benchmarks", "docs", "examples", "requirements", "tests"),
)
"""Folders of the project."""
GENERATED = {"commands.md", "settings.md"}
"""Written by `make docs`, not committed."""
DOCS = [path for path in (ROOT / "docs").rglob("*.md") if path.name not in GENERATED]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(p for p in DOCS if p.parent.name == "docs")]
)
WRITTEN = sorted([*ROOT.glob("*.md"), *DOCS])


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (page.name, text)
        for page in PAGES
        for kind, text in FENCE.findall(page.read_text("utf-8"))
        if kind == language
    ]


def console_lines() -> list[str]:
    """But those of an index of one's own, which a test of theirs runs in order."""
    pages = [text for page, text in blocks("console") if page != "own-index.md"]
    lines = [line for text in pages for line in text.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.split(" ")[0] in MODULES]


@pytest.fixture(scope="module")
def reference() -> Program:
    return runpy.run_path(str(ROOT / "docs" / "reference.py"))


def test_the_committed_interface_of_the_expander_is_what_it_serves(reference: Program) -> None:
    served = reference["openapi"]()
    assert (ROOT / "docs/openapi.json").read_text("utf-8") == served, "run make docs"


def test_the_references_name_every_command_and_say_what_every_setting_is(
    reference: Program,
) -> None:
    assert "cogr-index rebuild" in reference["commands_page"]()
    page = reference["settings_page"]()
    assert "## [opensearch]" in page
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    assert [row for row in rows if row.endswith("|  |")] == []


@pytest.mark.parametrize(("page", "text"), blocks("toml"))
def test_every_configuration_in_the_docs_loads(page: str, text: str, tmp_path: Path) -> None:
    whole = text if "[dataset]" in text else '[dataset]\nloader = "beir"\npath = "data"\n' + text
    (tmp_path / "cogr.toml").write_text(whole)
    load_settings(tmp_path / "cogr.toml")


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.name
)
def test_every_example_loads(example: Path) -> None:
    load_settings(example)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Also in a clone, which has no page that is generated."""
    links = re.findall(r"\]\(([^)#]+)?(?:#([^)]*))?\)", page.read_text("utf-8"))
    missing = []
    for link, anchor in links:
        there = (page.parent / link).resolve() if link else page
        if "://" in link:
            continue
        if there.name in GENERATED or not there.exists():
            missing.append(link)
        elif anchor and there.suffix == ".md" and anchor not in anchors(there):
            missing.append(f"{link}#{anchor}")
    assert missing == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs and GitHub name them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=FENCED)
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs")) for page in DOCS if page.name != "LOG.md"}
    assert set(listed) == pages | GENERATED


@pytest.fixture(scope="module")
def architecture() -> str:
    """ARCHITECTURE.md in one line, without its drawing."""
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    return " ".join(re.sub(r"^```.*?^```", "", page, flags=FENCED).split())


@pytest.fixture(scope="module")
def paths() -> list[str]:
    """Files and folders of the project; a folder ends with a slash."""
    roots = [ROOT / name for name in TOP]
    found = [*roots, *(path for root in roots for path in root.rglob("*"))]
    return [f"/{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}" for path in found]


def test_every_path_of_the_architecture_is_there(architecture: str, paths: list[str]) -> None:
    """Short ones, as `generators/cache.py`, lie somewhere below a package."""
    spans = re.findall(r"`([^` *]+)`", architecture)
    named = {span for span in spans if re.search(r"\w/|\.(py|md|sh|yaml|toml)$", span)}
    assert len(named) > 50
    there = "\n".join(paths) + "\n"
    assert sorted(name for name in named if not re.search(rf"/{name}/?\n", there)) == []


def test_every_name_of_the_architecture_is_in_its_file(architecture: str, paths: list[str]) -> None:
    """`name` in `file.py`, `name` (`file.py`), `file.py` (`name`)."""
    pairs = re.findall(r"`(\w+)` (?:in |\()`([\w/]+\.py)`", architecture)
    pairs += [pair[::-1] for pair in re.findall(r"`([\w/]+\.py)` \(`(\w+)`", architecture)]
    assert len(pairs) > 5
    missing = []
    for name, file in pairs:
        files = [ROOT / path[1:] for path in paths if path.endswith(f"/{file}")]
        definition = re.compile(rf"^\s*((async )?def|class) {name}\b|^{name}\b.*=", re.MULTILINE)
        if not any(definition.search(path.read_text("utf-8")) for path in files):
            missing.append(f"{file}: {name}")
    assert missing == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_keeps_to_a_hundred_columns(page: Path) -> None:
    """Tables, pictures, links and examples may be longer."""

    def blank(block: re.Match[str]) -> str:
        return "\n" * block[0].count("\n")

    prose = re.sub(r"^ *```.*?^ *```", blank, page.read_text("utf-8"), flags=FENCED)
    assert [
        (number, line)
        for number, line in enumerate(prose.splitlines(), 1)
        if len(line) > 100 and not re.match(r" *(\||!\[|\[[^]]*\]:? *\S+$)", line)
    ] == []


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Part of the bundled sample in the layout that the README asks for, with the README's two-line
    configuration.
    """
    folder = tmp_path_factory.mktemp("shop")
    write_beir(folder / "data", *sample_records(120))
    (folder / "cogr.toml").write_text('[dataset]\nloader = "beir"\npath = "data"\n')
    return folder


ELSEWHERE = re.compile(
    r"cogr-ops (opensearch|redis|serve|shadow|worker)"
    r"|cogr-train (demo|labels from-clicks|run |publish|report)"
    r"|.*(<|vllm|--workers celery|generator\.model=judge)"
)
"""Commands that need a server, a trained run or minutes, which tests of their own try."""


@pytest.mark.slow
def test_every_command_in_the_docs_runs(shop: Path, run: Run) -> None:
    for side in ("item", "query"):
        run(shop, f"cogr-index rebuild --side {side}")
    ids = {
        row["side"]: row["snapshot"]
        for row in json.loads(run(shop, "cogr-index list --json"))["snapshots"]
    }
    lines = list(dict.fromkeys(line for line in console_lines() if not ELSEWHERE.match(line)))
    assert len(lines) >= 8
    for line in lines:
        for side, id_ in ids.items():
            line = re.sub(rf"\b{side}-r\d{{3}}-[0-9a-f]{{12}}\b", id_, line)
        run(shop, line)


Run = Callable[[Path, str], str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, run_any: Command) -> Run:
    """Runs a command line in a folder; what it wrote to standard output."""

    def run(folder: Path, line: str) -> str:
        monkeypatch.chdir(folder)
        ended = run_any(*shlex.split(line))
        assert ended.status == 0, f"{line}: {ended.err}"
        return ended.out

    return run


@pytest.mark.slow
def test_the_walkthrough_runs_from_clicks_to_a_search(tmp_path: Path, run: Run) -> None:
    text = (ROOT / "docs" / "walkthrough.md").read_text("utf-8")
    shop = tmp_path / "shop"
    (shop / "data").mkdir(parents=True)
    write_log(shop, 0, queries=20, searches=100)
    items = [{"id": f"i{n}", "title": f"thing {n}", "text": f"made of {n}"} for n in range(15)]
    write_jsonl(shop / "data" / "items.jsonl", items)
    (configuration,) = re.findall(r'```toml title="cogr.toml"\n(.*?)```', text, re.DOTALL)
    (shop / "cogr.toml").write_text(configuration)
    lines = [line for _, block in FENCE.findall(text) for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("cogr-") and "cogr-ops" not in line]
    told = [run(shop, line) for line in commands]
    assert [line.split()[1] for line in commands] == [
        *("labels", "inspect", "rebuild", "rebuild", "evaluate", "search")
    ]
    assert "bm25" in told[-2]
    assert "rain jacket: " in told[-1]


@pytest.mark.drill
def test_the_notebook_runs_from_its_first_cell_to_its_last() -> None:
    notebook = nbformat.read(ROOT / "examples" / "sample-shop.ipynb", 4)
    kept = {"PYTHONPATH": str(ROOT), "JUPYTER_PLATFORM_DIRS": "1"}
    ran = NotebookClient(notebook, timeout=300, kernel_name="python3").execute(
        env=os.environ | kept
    )
    texts = [
        "".join(output.get("text") or output["data"]["text/plain"])
        for cell in ran.cells
        for output in cell.get("outputs", ())
        if output.get("name") != "stderr"
    ]
    assert "which serves" in "".join(texts)
    assert texts[-1].startswith("The gate keeps item-")
