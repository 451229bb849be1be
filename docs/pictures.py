"""Takes the pictures of the README and of docs/serving.md: the playground in Chromium over the
bundled sample shop, and the head of the demo's report, where `make demo` left one.

Run by `make pictures`.
"""

from __future__ import annotations

import io
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from cogr.records import SIDES
from cogr.settings import load_settings
from indexers.rebuild.run import RebuildRequest, RebuildRun
from indexers.release import release
from indexers.telemetry.logs import say
from indexers.telemetry.terminal import progress_bar
from indexers.workspace import Workspace
from tests.browser import launched
from tests.ops.expander.expander_worlds import running, wait_for
from trainers.demo import CATALOGUE

PICTURES = Path(__file__).parent / "pictures"
REPORT = Path(".demo/report.html")
QUERY = "metal bookshelf"


def main() -> None:
    """Index the shop twice, serve the later pair, and take every picture."""
    with tempfile.TemporaryDirectory() as folder:
        shop = _indexed(Path(folder))
        with running(shop, playground=True) as started, contextmanager(launched)() as browser:
            wait_for(lambda: started.parts.follower.pair.item)
            take = _Camera(browser, f"{started.url}/playground/")
            take("search", 1120, 1180, "light")
            take("item", 1120, 900, "dark", "#hits .title", "#item[open] h3")
            take("queries", 1120, 900, "light", "#all", "#queries-found tbody tr")
            take("phone", 390, 900, "light")
            if REPORT.exists():
                page = browser.new_page(viewport={"width": 1120, "height": 900})
                page.goto(REPORT.resolve().as_uri())
                _save(page.screenshot(), "report")


def _indexed(folder: Path) -> Workspace:
    file = folder / "cogr.toml"
    file.write_text(f'store = "store"\n[dataset]\nloader = "jsonl"\npath = "{CATALOGUE}"\n')
    workspace = Workspace(load_settings(file))
    for kind in ("extractive", "statistical"):
        requests = [RebuildRequest(side, kind, publish=False) for side in SIDES]
        ids = [
            RebuildRun(workspace, request, progress_bar, say).carry_out().snapshot.id
            for request in requests
        ]
    release(workspace, ids, gate=False)
    return workspace


class _Camera:
    def __init__(self, browser: Any, url: str) -> None:
        self._browser, self._url = browser, url

    def __call__(
        self,
        name: str,
        width: int,
        height: int,
        scheme: str,
        click: str | None = None,
        awaited: str = "#baseline .hit",
    ) -> None:
        context = self._browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": height}
        )
        page = context.new_page()
        page.goto(f"{self._url}?q={QUERY}")
        page.wait_for_selector("#baseline .hit")
        if click:
            page.locator(click).first.click()
        page.wait_for_selector(awaited)
        _save(page.screenshot(), f"playground-{name}")
        context.close()


def _save(screenshot: bytes, name: str) -> None:
    """A page has few colours: a palette makes the file a third."""
    picture = Image.open(io.BytesIO(screenshot)).convert("RGB")
    picture.quantize(256, Image.Quantize.MAXCOVERAGE).save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
