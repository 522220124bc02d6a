"""The started dashboard in a real browser: every page draws, nothing fails in page or console."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
PAGES = {"Runs": 1, "Precisions": 3, "Routing and dispatch": 5}
START_S, WAIT_MS = 60, 60_000
PROBES = ("_stcore/health", "_stcore/host-config")
"""Streamlit looks for its server below a deep link first, and the browser logs the 404 of that."""


@pytest.fixture(scope="module")
def address(demo):
    results = demo.results
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = "import sys; from workbench.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "dashboard", "--results", str(results), "--port", str(port)]
    server = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{url}/_stcore/health")
        yield url
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=20) == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=5)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no browser on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        yield started
        started.close()


def _wait_for(url):
    deadline = time.monotonic() + START_S
    while True:
        try:
            assert urllib.request.urlopen(url, timeout=5).status == 200
            return
        except OSError:
            assert time.monotonic() < deadline, "the dashboard did not start"
            time.sleep(0.2)


def _watched_page(browser):
    """A page, and the list that its console errors, exceptions and outside requests fall into."""
    page, faults = browser.new_page(viewport={"width": 1400, "height": 1000}), []

    def hear(message):
        if message.type == "error" and not str(message.location.get("url")).endswith(PROBES):
            faults.append(message.text)

    def see(request):
        if not request.url.startswith(("http://127.0.0.1", "data:", "blob:")):
            faults.append(f"asks {request.url}")

    page.on("console", hear)
    page.on("request", see)
    page.on("pageerror", lambda error: faults.append(str(error)))
    return page, faults


def _assert_drawn(page, number):
    page.locator("h1").first.wait_for(timeout=WAIT_MS)
    drawings = page.locator(".js-plotly-plot .main-svg:first-child")
    for index in range(number):
        drawings.nth(index).wait_for(timeout=WAIT_MS)
    page.locator("[data-testid=stStatusWidget]").wait_for(state="detached", timeout=WAIT_MS)
    assert page.locator(".js-plotly-plot").count() == number
    assert page.locator(".js-plotly-plot .trace, .js-plotly-plot .trace.bars").count() >= number
    assert page.locator(".stException, [data-testid=stException]").count() == 0


def test_every_page_draws_its_figures_without_an_error(address, browser):
    page, faults = _watched_page(browser)
    page.goto(address)
    for title, number in PAGES.items():
        page.get_by_test_id("stSidebarNavLink").filter(has_text=title).click()
        page.locator("[data-testid=stSidebarNavLink][aria-current=page]", has_text=title).wait_for(timeout=WAIT_MS)
        _assert_drawn(page, number)
    assert faults == []


def test_choices_outlive_a_change_of_page_and_a_link_opens_them(address, browser):
    page, faults = _watched_page(browser)
    page.goto(f"{address}/precisions?engine=simulate&strategy=flat")
    _assert_drawn(page, 3)
    assert page.get_by_text("measured, on cpu").count() == 0
    page.get_by_test_id("stSidebarNavLink").filter(has_text="Routing").click()
    page.wait_for_url("**/routing_and_dispatch?*", timeout=WAIT_MS)
    _assert_drawn(page, 5)
    assert "engine=simulate" in page.url
    assert "strategy=flat" in page.url
    assert faults == []
