"""One server and one browser for all tests of this folder."""

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

from tests.sample_run import write_sample_run
from workbench.analysis.validation import write_points
from workbench.spec.validation import POINT_COLUMNS

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
START_S = 60


@pytest.fixture(scope="session")
def served_results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    write_sample_run(folder, name="first")
    write_sample_run(folder, name="second: *bold* `x`")
    point = dict.fromkeys(POINT_COLUMNS) | {"section": "own", "split": "kernel", "dtype": "bf16", "tokens": 8}
    methods = [point | {"method": name, "hardware": "h100-sxm"} for name in ("roofline", "published")]
    points = [one | {"measured_us": us, "predicted_us": 1.1 * us} for one in methods for us in (10.0, 50.0, 400.0)]
    write_points(points, folder / "validation.parquet")
    return folder


@pytest.fixture(scope="session")
def address(served_results):
    with serve(served_results) as url:
        yield url


class serve:
    """``with serve(results) as url``: the dashboard as a user starts it; it must end cleanly."""

    def __init__(self, results, **environment):
        self.results, self.environment = results, environment

    def __enter__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        code = "import sys; from workbench.cli.main import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "dashboard", "--results", str(self.results), "--port", str(port)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | self.environment
        self.server = subprocess.Popen(command, cwd=ROOT, env=environment)
        self.url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_S
        while True:
            try:
                assert urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=5).status == 200
                return self.url
            except OSError:
                assert time.monotonic() < deadline, "the dashboard did not start"
                time.sleep(0.2)

    def __exit__(self, *_):
        self.server.send_signal(signal.SIGTERM)
        assert self.server.wait(timeout=20) == 0
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(self.url, timeout=5)


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("no browser on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        yield started
        started.close()
