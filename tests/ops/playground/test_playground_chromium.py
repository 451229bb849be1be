"""The playground in a real browser: by keyboard, narrow and wide, light and dark; accessible,
alone, and deaf to markup in texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.browser import launched
from tests.ops.expander.expander_worlds import Running, running
from tests.ops.playground.playground_worlds import HOSTILE, TITLES, two_rounds, workspace

pytestmark = pytest.mark.slow
expect = pytest.importorskip(
    "playwright.sync_api", reason="NO PLAYWRIGHT: pip install playwright"
).expect
PATIENCE = 120_000
"""Milliseconds."""
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    yield from launched()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    filled = workspace(tmp_path_factory.mktemp("shop"))
    two_rounds(filled)
    with running(filled, playground=True) as started:
        yield started


@contextmanager
def opened(chromium: Any, url: str, query: str = "", **context: Any) -> Iterator[Any]:
    """The page, watched: nothing complains, and nothing is asked of anybody else."""
    browsing = chromium.new_context(**context)
    browsing.set_default_timeout(PATIENCE)
    page, said, asked = browsing.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(f"{error} {error.stack}"))
    page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{url}/playground/{f'?q={query}' if query else ''}")
    page.wait_for_selector("#baseline .hit" if query else "#examples button, .notice")
    yield page
    browsing.close()
    # What a test breaks on purpose, the browser notes.
    assert [text for text in said if "Failed to load resource" not in text] == []
    assert {address.removeprefix(url)[:12] for address in asked} == {"/playground/"}


def figures(page: Any) -> str:
    return " ".join(page.inner_text("#figures").split())


def keywords(page: Any, state: str = "true") -> list[str]:
    found: list[str] = page.locator(f"#keywords [aria-pressed={state}] bdi").all_inner_texts()
    return found


def titles(page: Any) -> list[str]:
    found: list[str] = page.locator("#hits .title").all_inner_texts()
    return found


def test_a_search_by_keyboard_with_changed_keywords(chromium: Any, shop: Running) -> None:
    with opened(chromium, shop.url) as page:
        page.keyboard.type("green sofa")
        page.keyboard.press("Enter")
        page.wait_for_selector("#baseline .hit")
        assert keywords(page) == ["green sofa", "sofa", "couch"]
        assert titles(page) == [TITLES["a"], TITLES["b"], TITLES["d"]]
        assert figures(page) == "items 3 of 8 P 0.67 R 0.67 F1 0.67"
        assert page.inner_text("#missed summary") == "1 relevant item not in the set"
        page.get_by_role("button", name="sofa in 3 items").first.press("Space")
        expect(page.locator("#hits .hit")).to_have_count(2)
        assert (keywords(page), keywords(page, "false")) == (["green sofa", "couch"], ["sofa"])
        assert figures(page) == "items 2 of 8 −1 P 1.00 +0.33 R 0.67 F1 0.80 +0.13"
        page.fill("#more", "Velvet, nothing else")
        page.press("#more", "Enter")
        expect(page.locator("#hits .hit")).to_have_count(3)
        assert keywords(page) == ["green sofa", "couch", "velvet", "nothing else"]
        page.get_by_role("button", name="Undo changes").press("Enter")
        page.wait_for_selector("#reset", state="hidden")
        assert keywords(page) == ["green sofa", "sofa", "couch"]
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "query"


def test_hostile_texts_are_shown_as_texts(chromium: Any, shop: Running) -> None:
    with opened(chromium, shop.url, "<b>bold</b> table") as page:
        assert set(HOSTILE) < set(titles(page))
        assert keywords(page) == ["b>bold</b> table", "hostile", "table"]
        page.fill("#more", "<img src=x onerror=alert(2)>")
        page.press("#more", "Enter")
        page.get_by_role("button", name="Undo changes").wait_for()
        page.locator("#hits .title", has_text="<script>").press("Enter")
        page.wait_for_selector("#item[open]")
        assert page.inner_text("#item-title") == HOSTILE[1]
        assert "<i>italic</i>" in page.inner_text("#item")
        assert page.locator("b, i, main svg, main img, body script").count() == 0
        assert keywords(page)[-1] == "img src=x onerror=alert(2"


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1200), pytest.param("dark", 360, marks=pytest.mark.drill)]
)
def test_it_is_accessible_and_fits(chromium: Any, shop: Running, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with opened(
        chromium, shop.url, color_scheme=scheme, viewport={"width": width, "height": 800}
    ) as page:

        def sound() -> bool:
            found = axe.run(page)
            assert found.violations_count == 0, found.generate_report()
            return bool(page.evaluate("document.documentElement.scrollWidth") <= width)

        assert sound()
        page.locator("#examples button", has_text="bold").click()
        page.wait_for_selector("#baseline .hit")
        page.locator("#keywords button").first.click()
        page.wait_for_selector("#keywords [aria-pressed=false]")
        page.locator("#missed summary").click()
        assert sound()
        page.locator("#hits .title").first.click()
        page.wait_for_selector("#item[open]")
        assert sound()
        page.keyboard.press("Escape")
        page.locator("#all").click()
        page.wait_for_selector("#queries-found tbody tr")
        assert sound()
        red = page.evaluate(
            "Number(getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0])"
        )
        assert (red < 128) == (scheme == "dark")
