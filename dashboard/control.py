"""Planning, starting and stopping runs, through the command line as a person would."""

import base64
import json
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from dashboard.data import results_folder
from workbench.store.files import write_atomically

WAIT_S = 120
MOST_TEXT = 64_000
MOST_ADDRESS = 4_000
KEPT = ".scenarios"


@dataclass(frozen=True)
class Answer:
    """What a command said: ``told`` when it succeeded, ``fault`` in words when it did not."""

    told: dict[str, Any]
    fault: str = ""


@st.cache_data(show_spinner="Planning", max_entries=32)
def plan(scenario: str, text: str | None) -> Answer:
    """``moe-workbench plan`` of a suite or file, or of a text that was edited; nothing is run."""
    if text is None:
        return ask("plan", "--format", "json", "--", scenario)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_text(text, encoding="utf-8")
        answer = ask("plan", "--format", "json", "--", str(path))
        return Answer(answer.told, answer.fault.replace(f"{folder}/", ""))


def start(scenario: str, text: str | None) -> Answer:
    """Start it in the background; an edited text is kept beside the runs, for the run reads it once more."""
    if text is not None:
        kept = results_folder() / KEPT / f"scenario-{zlib.crc32(text.encode('utf-8')):08x}.yaml"
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, text.encode("utf-8"))
        scenario = str(kept)
    return ask("run", "--results", str(results_folder()), "--detach", "--format", "json", "--", scenario)


def stop(run: Path) -> str:
    """Stop a running run; what is done stays. What went wrong in words, empty when nothing did."""
    done = _command("stop", "--results", str(run.parent), "--", str(run))
    return (done.stderr or done.stdout) if done.returncode else ""


def ask(*arguments: str) -> Answer:
    """The JSON that a command prints."""
    done = _command(*arguments)
    try:
        return Answer({}, done.stderr or done.stdout) if done.returncode else Answer(json.loads(done.stdout))
    except ValueError:
        return Answer({}, f"no answer from {arguments[0]}: {done.stdout[:500]}")


def packed(text: str) -> str | None:
    """A text for the address, None when it is too long for one."""
    code = base64.urlsafe_b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii")
    return code if len(code) <= MOST_ADDRESS else None


def unpacked(code: str) -> str | None:
    """The text of an address, None for what is none."""
    try:
        inflate = zlib.decompressobj()
        raw = inflate.decompress(base64.urlsafe_b64decode(code), MOST_TEXT)
        return raw.decode("utf-8") if inflate.eof else None
    except (ValueError, zlib.error):
        return None


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "workbench.cli.main", *arguments]
    return subprocess.run(line, capture_output=True, text=True, encoding="utf-8", timeout=WAIT_S, check=False)
