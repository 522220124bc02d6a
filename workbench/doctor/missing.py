"""What is not installed, what it would be good for, and the command that gets it."""

import importlib.util
import shutil
from dataclasses import dataclass

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@dataclass(frozen=True)
class Gap:
    """Something absent. ``blocks`` is what does not work without it."""

    name: str
    blocks: str
    how: str


MODULES = (
    Gap("triton", "the Triton kernels, also in the interpreter", "pip install triton (Linux)"),
    Gap("ray", "measured cells and large simulated plans", "pip install 'ray[default]'"),
    Gap("streamlit", "moe-workbench dashboard", "pip install 'moe-workbench[dashboard]'"),
    Gap("plotly", "figures of report and dashboard", "pip install 'moe-workbench[dashboard]'"),
    Gap("duckdb", "SQL over runs in the dashboard", "pip install 'moe-workbench[dashboard]'"),
)
GPU_MODULES = (Gap("pynvml", "clocks and power caps in records", "pip install 'moe-workbench[gpu]'"),)
TEST_MODULES = (
    Gap("pytest", "make test", "pip install 'moe-workbench[test]'"),
    Gap("playwright", "the browser tests of the dashboard", "pip install 'moe-workbench[test]'"),
)
BROWSER = Gap(
    "chromium", "the browser tests of the dashboard", "apt-get install chromium, or playwright install chromium"
)


def find_missing(*, has_gpu: bool) -> list[Gap]:
    """Gaps of this installation. Looks modules up without importing them and runs no program."""
    wanted = (*MODULES, *(GPU_MODULES if has_gpu else ()), *TEST_MODULES)
    gaps = [gap for gap in wanted if importlib.util.find_spec(gap.name) is None]
    if not any(shutil.which(browser) for browser in BROWSERS):
        gaps.append(BROWSER)
    return gaps
