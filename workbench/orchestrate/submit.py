"""A run as a Ray job: this code and the scenario travel to the cluster, the log and the results come back.

Only the job server (the dashboard's port, 8265 if unset) has to be reachable. The results travel in the job's log, as
Ray hands nothing else back.
"""

import asyncio
import logging
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from workbench.orchestrate.join import SessionError
from workbench.store.bundle import MARK, unbundle

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

CODE = ("workbench", "kernels", "scenarios")
RESULTS = "moe-workbench-results"
END_S = 60.0
"""How long a job whose log has ended may take to say how it ended."""
START_S = 30.0
CHATTY = ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk", "ray._private.runtime_env.packaging")
"""Loggers that tell of uploads and sockets in the midst of the run's own log."""
IGNORED = ("__pycache__", "*.pyc", "results", ".git", ".venv")


@dataclass(frozen=True)
class Submission:
    """A job that ended. ``status`` is Ray's, ``runs`` are the folders that came back."""

    job_id: str
    status: str
    message: str
    runs: tuple[Path, ...]


def submit(arguments: Sequence[str], *, scenarios: Sequence[str], files: Sequence[Path], address: str) -> str:
    """Starts ``moe-workbench run`` with ``arguments`` and the texts of ``scenarios`` on the cluster; the job's id.

    ``files`` are what the scenarios read, relative to the working directory.
    Raises SessionError (a ValueError) in one line when no job server answers.
    """
    client = _client(address)
    names = [f"scenario-{number}.yaml" for number in range(len(scenarios))]
    with _working_dir(dict(zip(names, scenarios, strict=True)), files) as folder:
        mode = os.environ.get("RAY_AUTH_MODE", "token")
        environment = {"working_dir": folder, "env_vars": {"RAY_AUTH_MODE": mode, "PYTHONPATH": "."}}
        try:
            return _start(client, entrypoint=_entrypoint([*names, *arguments]), runtime_env=environment)
        except Exception as error:
            raise SessionError(f"--address {address}: the job was not taken: {_line(error)}") from error


def follow(job_id: str, *, address: str, results_dir: Path, say: Callable[[str], None]) -> Submission:
    """Prints the log of a job to its end, and puts its results into ``results_dir``.

    The log is read from its start, so a job can be followed again. Raises SessionError when the job server does not
    answer or knows no such job, ValueError when the results did not arrive whole.
    """
    client = _client(address)
    try:
        client.get_job_info(job_id)  # says so where there is no such job
        bundle = asyncio.run(_tail(client, job_id, say))
        status, message = _ended(client, job_id)
    except RuntimeError as error:
        raise SessionError(f"--address {address}: job {job_id} cannot be followed: {_line(error)}") from error
    runs = unbundle(bundle, results_dir) if bundle else ()
    return Submission(job_id, status, message, runs)


def _start(client: "JobSubmissionClient", **job: Any) -> str:
    """A head that has just started has no agent to take jobs yet; it is asked again for a while."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return client.submit_job(**job)
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(1.0)


def _entrypoint(arguments: Sequence[str]) -> str:
    """``python`` is the one on the PATH that the head was started with."""
    run = ["python", "-m", "workbench.cli.main", "run", *arguments, "--results", RESULTS]
    back = f'if [ -d {RESULTS} ]; then python -m workbench.store.bundle {RESULTS}; fi; exit "$status"'
    return f'{shlex.join(run)} --address "$RAY_ADDRESS"; status=$?; {back}'


@contextmanager
def _working_dir(scenarios: dict[str, str], files: Sequence[Path]) -> Iterator[str]:
    """A folder with this code, the scenarios and what they read; results and environments stay behind."""
    root = Path(__file__).resolve().parents[2]
    with TemporaryDirectory(prefix="moewb-job-") as folder:
        for name in CODE:
            if (root / name).is_dir():
                shutil.copytree(root / name, Path(folder) / name, ignore=shutil.ignore_patterns(*IGNORED))
        for name, text in scenarios.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        for path in files:
            target = Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        yield folder


def _client(address: str) -> "JobSubmissionClient":
    from ray.job_submission import JobSubmissionClient

    if not address.startswith(("http://", "https://")):
        raise SessionError(f"--address {address}: give the job server's address, for example http://10.0.0.1:8265")
    try:
        client = JobSubmissionClient(address)
    except Exception as error:
        mend = "start the head with --include-dashboard=true, or reach it through a tunnel (docs/clusters.md)"
        raise SessionError(f"--address {address}: no Ray job server answers there ({_line(error)}); {mend}") from error
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    return client


async def _tail(client: "JobSubmissionClient", job_id: str, say: Callable[[str], None]) -> list[str]:
    """The bundle's lines; all others go to ``say``, whole lines at a time."""
    bundle: list[str] = []

    def take(line: str) -> None:
        if line.startswith(MARK):
            bundle.append(line)
        else:
            say(line)

    rest = ""
    async for chunk in client.tail_job_logs(job_id):
        *lines, rest = (rest + chunk).split("\n")
        for line in lines:
            take(line)
    if rest:
        take(rest)
    return bundle


def _ended(client: "JobSubmissionClient", job_id: str) -> tuple[str, str]:
    """Ray's last word on the job, asked until it is the last."""
    deadline = time.monotonic() + END_S
    while True:
        info = client.get_job_info(job_id)
        if info.status.is_terminal():
            return str(info.status.value), _line(info.message or "")
        if time.monotonic() > deadline:
            raise RuntimeError(f"its log ended and {END_S:.0f} s later it is still {info.status.value}")
        time.sleep(0.2)


def _line(fault: BaseException | str) -> str:
    text = str(fault).strip()
    return text.splitlines()[0].rstrip(":") if text else "" if isinstance(fault, str) else type(fault).__name__
