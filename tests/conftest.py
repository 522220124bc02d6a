"""The main job, run once as a user runs it; several tests look at what it left."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIMIT_S = 280
# A calibration that the user made of this machine must not decide what tests see; a file is no folder of any.
os.environ.setdefault("MOE_WORKBENCH_CALIBRATION", os.devnull)


# What takes all cores itself, or compares times, runs when nothing else does; `make test` runs the rest two at a time.
ALONE = ("cluster", "comm", "dashboard", "measure", "orchestrate", "test_demo.py", "test_wheel.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(ROOT / "tests").parts[0] in ALONE:
            item.add_marker("alone")


@dataclass(frozen=True)
class Demo:
    """Folder of results and what the command printed."""

    results: Path
    status: int
    printed: str

    def command(self, *arguments: str) -> str:
        """Standard output of a workbench command on these results; its status must be 0."""
        done = subprocess.run(
            [sys.executable, "-m", "workbench.cli.main", *arguments, "--results", str(self.results)],
            cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Demo:
    """``moe-workbench run quickstart``: 4 ranks of this machine measured, 8 to 128 H200 simulated."""
    results = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "workbench.cli.main", "run", "quickstart", "--results", str(results)],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    return Demo(results, done.returncode, done.stdout + done.stderr)
