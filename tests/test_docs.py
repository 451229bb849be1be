"""The documentation is true: references are generated, configurations load, commands run."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cogr.settings import load_settings

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODULES = {"cogr-index": "indexers.cli", "cogr-train": "trainers.cli", "cogr-ops": "ops.cli"}


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (page.name, text)
        for page in PAGES
        for kind, text in FENCE.findall(page.read_text("utf-8"))
        if kind == language
    ]


def console_lines() -> list[tuple[str, str]]:
    lines = [
        (page, line.split("  #")[0].strip())
        for page, text in blocks("console")
        for line in text.splitlines()
    ]
    return list(
        dict.fromkeys((page, line) for page, line in lines if line.split(" ")[0] in MODULES)
    )


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_reference_is_what_the_commands_say(reference: ModuleType) -> None:
    assert (ROOT / "docs/commands.md").read_text("utf-8") == reference.commands_page(), (
        "run make docs"
    )


def test_the_settings_reference_is_what_the_settings_are(reference: ModuleType) -> None:
    assert (ROOT / "docs/settings.md").read_text("utf-8") == reference.settings_page(), (
        "run make docs"
    )


def test_the_committed_interface_of_the_expander_is_what_it_serves(reference: ModuleType) -> None:
    assert (ROOT / "docs/openapi.json").read_text("utf-8") == reference.openapi(), "run make docs"


def test_every_setting_says_what_it_is(reference: ModuleType) -> None:
    rows = [line for line in reference.settings_page().splitlines() if line.startswith("| `")]
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
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_every_page_is_in_the_navigation() -> None:
    listed = set(
        re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    )
    docs = ROOT / "docs"
    assert listed == {str(page.relative_to(docs)) for page in docs.rglob("*.md")}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled sample in the layout that the README asks for, with the README's two-line
    configuration.
    """
    from cogr.datasets import load_dataset
    from trainers.demo import CATALOGUE

    folder = tmp_path_factory.mktemp("shop")
    sample = load_dataset("jsonl", CATALOGUE)
    data = folder / "data"
    (data / "qrels").mkdir(parents=True)
    items = [{"_id": item.id, "title": item.title, "text": item.text} for item in sample.items]
    queries = [{"_id": query.id, "text": query.text} for query in sample.all_queries()]
    for name, records in (("corpus", items), ("queries", queries)):
        (data / f"{name}.jsonl").write_text(
            "".join(json.dumps(record) + "\n" for record in records)
        )
    for split in ("train", "test"):
        pairs = [
            (query.id, item)
            for query in sample.queries[split]
            for item in sorted(sample.relevant[query.id])
        ]
        lines = ["query-id\tcorpus-id\tscore", *(f"{query}\t{item}\t1" for query, item in pairs)]
        (data / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    (folder / "cogr.toml").write_text('[dataset]\nloader = "beir"\npath = "data"\n')
    return folder


MINUTES = (
    "cogr-ops opensearch start",
    "cogr-ops redis start",
    "cogr-ops serve",
    "cogr-ops backlog",
    "cogr-ops shadow",
    "cogr-ops worker",
    "cogr-train demo",
    "cogr-train sft",
    "cogr-train round",
    "cogr-train run ",
    "cogr-train publish",
    "cogr-train report",
)


def runs_anywhere(line: str) -> bool:
    """Commands that need a server, a trained run or minutes are tried by tests of their own."""
    unfit = ("<", "vllm", "--workers celery")
    servers = tuple(
        f"cogr-ops {kind} {what}" for kind in ("opensearch", "redis") for what in ("status", "stop")
    )
    return not line.startswith((*MINUTES, *servers)) and not any(part in line for part in unfit)


@pytest.mark.slow
def test_every_command_in_the_docs_runs(shop: Path) -> None:
    for side in ("item", "query"):
        run(shop, f"cogr-index rebuild --side {side}")
    ids = {
        row["side"]: row["snapshot"]
        for row in json.loads(run(shop, "cogr-index list --json"))["snapshots"]
    }
    lines = [line for _, line in console_lines() if runs_anywhere(line)]
    assert len(lines) >= 8
    for line in lines:
        for side, id_ in ids.items():
            line = re.sub(rf"\b{side}-r\d{{3}}-[0-9a-f]{{12}}\b", id_, line)
        run(shop, line)


def run(folder: Path, line: str) -> str:
    name, *arguments = shlex.split(line)
    ended = subprocess.run(
        [sys.executable, "-m", MODULES[name], *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{line}: {ended.stderr}"
    return ended.stdout
