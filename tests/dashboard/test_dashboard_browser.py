"""The started dashboard in a real browser: every page, as a link opens it."""

from pathlib import Path

import axe_playwright_python
import pytest

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
WAIT_MS = 60_000
PROBES = ("_stcore/health", "_stcore/host-config")
"""Streamlit looks for its server below a deep link first, and the browser logs the 404 of that."""
ONLY_FLAT = "engine=simulate&strategy=flat"
PAGES = {
    "": (0, ""),
    "run": (1, ONLY_FLAT),
    "precisions": (3, ONLY_FLAT),
    "routing": (4, ONLY_FLAT),
    "dispatch": (3, ONLY_FLAT),
    "scaling": (2, ONLY_FLAT),
    "timeline": (2, ONLY_FLAT),
    "memory": (2, ONLY_FLAT),
    "roofline": (1, ONLY_FLAT),
    "compare": (1, "verdict=unclear&on=cpu"),
    "validation": (1, "by_method=published"),
    "data": (0, ONLY_FLAT),
}
"""Address: how many figures, and what a link to it chooses."""
SERIOUS = """async () => (await axe.run(document, {resultTypes: ['violations'], iframes: false})).violations
    .filter(found => ['serious', 'critical'].includes(found.impact))
    .map(found => found.id + ': ' + found.nodes.slice(0, 2).map(node => node.html.slice(0, 160)).join(' | '))"""
WIDTH = "document.documentElement.scrollWidth - window.innerWidth"
FOCUSED = "document.activeElement.closest('[data-testid=stMain] *') !== null"
MOST_TABS = 60


@pytest.fixture(scope="module")
def page(browser):
    """A page; console errors, exceptions and outside requests fall into its ``faults``."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    faults = opened.faults = []

    def hear(message):
        if message.type == "error" and not str(message.location.get("url")).endswith(PROBES):
            faults.append(message.text)

    def see(request):
        if not request.url.startswith(("http://127.0.0.1", "data:", "blob:")):
            faults.append(f"asks {request.url}")

    opened.on("console", hear)
    opened.on("request", see)
    opened.on("pageerror", lambda error: faults.append(str(error)))
    yield opened
    opened.close()


def assert_drawn(page, number):
    page.locator("h1").first.wait_for(timeout=WAIT_MS)
    drawings = page.locator(".js-plotly-plot .main-svg:first-child")
    for index in range(number):
        drawings.nth(index).wait_for(timeout=WAIT_MS)
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for(timeout=WAIT_MS)
    assert page.locator(".js-plotly-plot").count() == number
    assert page.locator(".stException, [data-testid=stException]").count() == 0


def chips(page):
    """What is chosen: the marks in choices that take several."""
    return set(page.locator(".react-aria-ComboBox [data-tag]").all_inner_texts())


@pytest.mark.parametrize("name", PAGES)
def test_a_link_opens_the_page_as_it_was(page, address, name):
    number, query = PAGES[name]
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{address}/{name}?{query}")
    assert_drawn(page, number)
    wanted = dict(part.split("=") for part in query.split("&") if part)
    assert set(wanted.values()) <= {text.strip() for text in chips(page)}
    assert all(part in page.url for part in query.split("&"))
    assert page.evaluate(WIDTH) <= 0
    assert any(_tab(page) for _ in range(MOST_TABS)), "the keyboard does not reach the page"
    page.add_script_tag(path=str(AXE))
    assert page.evaluate(SERIOUS) == []
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(300)
    assert page.evaluate(WIDTH) <= 0
    assert page.faults == []


def _tab(page):
    page.keyboard.press("Tab")
    return page.evaluate(FOCUSED)


def test_a_choice_goes_into_the_address_and_outlives_a_change_of_page(page, address):
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{address}/precisions")
    assert_drawn(page, 3)
    assert page.get_by_text("measured, on cpu").count() > 0
    page.get_by_label("Engine").click()
    page.get_by_role("option", name="simulate").click()
    page.wait_for_url("**/precisions?*engine=simulate*", timeout=WAIT_MS)
    page.get_by_text("measured, on cpu").first.wait_for(state="detached", timeout=WAIT_MS)
    page.keyboard.press("Escape")
    page.get_by_test_id("stSidebarNavLink").filter(has_text="Dispatch").click()
    page.wait_for_url("**/dispatch?*engine=simulate*", timeout=WAIT_MS)
    assert_drawn(page, 3)
    assert page.faults == []


def test_a_link_of_the_first_page_opens_its_run(page, address, served_results):
    page.goto(address)
    assert_drawn(page, 0)
    page.get_by_test_id("stMain").get_by_role("link", name="first").click()
    page.wait_for_url("**/run?*run=*first*", timeout=WAIT_MS)
    page.locator("h1", has_text="first").wait_for(timeout=WAIT_MS)
    assert page.faults == []
