"""A store of 500 runs with 200,000 cells: the first page, filters, and the server's memory."""

import os
import time

import psutil
import pytest

from tests.big_store import build_store
from tests.dashboard.conftest import serve

READY = "[data-testid=stApp][data-test-script-state=notRunning]"
WAIT_MS = 60_000
TRIES = 2
"""Of some tries the quickest counts, and a machine busy with other things is given the time that these take."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    build_store(folder / "results", runs=500, cells=400)
    started = serve(folder / "results", XDG_CACHE_HOME=str(folder / "cache"))
    with started:
        yield started


def busy():
    return max(1.0, os.getloadavg()[0] / os.cpu_count())


def settled(page):
    page.locator("h1").first.wait_for(timeout=WAIT_MS)
    page.locator(READY).wait_for(timeout=WAIT_MS)


def test_500_runs_with_200000_cells_stay_quick(server, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(server.url)
    page.get_by_text("500 runs with 200,000 cells").wait_for(timeout=WAIT_MS)
    assert min(_opening(page, server.url) for _ in range(TRIES)) <= 2.0 * busy()
    page.goto(f"{server.url}/data")
    settled(page)
    assert min(_filtering(page, "Precision", name) for name in ("bf16", "fp8_block")) <= 1.0 * busy()
    page.goto(f"{server.url}/precisions?engine=simulate")
    settled(page)
    assert min(_filtering(page, "Precision", name) for name in ("bf16", "fp8_block")) <= 1.0 * busy()
    children = psutil.Process(server.server.pid).children(recursive=True)
    assert sum(child.memory_info().rss for child in children) < 10**9
    page.close()


def _opening(page, url):
    start = time.perf_counter()
    page.goto(url)
    page.get_by_text("500 runs with 200,000 cells").wait_for(timeout=WAIT_MS)
    settled(page)
    return time.perf_counter() - start


def _filtering(page, label, option):
    page.get_by_label(label, exact=True).click()
    choice = page.get_by_role("option", name=option, exact=True)
    choice.wait_for(timeout=WAIT_MS)
    start = time.perf_counter()
    choice.click()
    page.wait_for_url(f"**={option}*", timeout=WAIT_MS)
    settled(page)
    taken = time.perf_counter() - start
    page.keyboard.press("Escape")
    return taken
