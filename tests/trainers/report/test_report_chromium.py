"""The report in a real browser: no error, no request, nothing wider than a telephone, hostile text
shown as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import launched
from tests.trainers.report_worlds import whole_run
from trainers.report import write_report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    yield from launched()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    write_report(*whole_run(folder, hostile=True), folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("dark", 360),
        *(
            pytest.param(*one, marks=pytest.mark.drill)
            for one in (("light", 360), ("dark", 1200), ("light", 1200))
        ),
    ],
)
def test_it_renders_and_stays_by_itself(chromium: Any, file: Path, scheme: str, width: int) -> None:
    context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    assert asked == [file.as_uri()]
    assert said == []
    assert page.title() == "Training run main"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("figure > svg").count() >= 5
    heights = page.eval_on_selector_all(
        "figure > svg", "found => found.map(one => one.getBoundingClientRect().height)"
    )
    assert min(heights) > 60
    red = page.evaluate(
        "Number(getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0])"
    )
    context.close()
    assert (red < 128) == (scheme == "dark")
