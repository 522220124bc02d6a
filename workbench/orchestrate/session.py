"""A Ray session: a cluster of its own on the loopback address, or one that is joined by address."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from workbench.orchestrate.join import SessionError, check_address, explain_join

RANK_MEMORY = 512 * 2**20
OBJECT_STORE_MEMORY = 128 * 2**20
RANK_SLOT = "rank_slot"
_TEMP_PREFIX = "moewb-"
_LOCAL_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's agents outlive a killed driver for as long as they look for its head: 60 s if left unset.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    # A gang has workers of its own environment, so workers started ahead would only take its cores.
    "RAY_prestart_worker_first_driver": "0",
    # Off, Ray takes 127.0.0.1 for the node's address, so every port binds to loopback; on, they bind to all.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


@dataclass(frozen=True)
class Session:
    """A connected Ray session. ``address`` is None for a cluster of our own; ``slot`` is what one CPU rank asks for."""

    address: str | None
    cores: int
    slot: str
    temp_dir: str | None

    @property
    def is_local(self) -> bool:
        return self.address is None


def rank_slots(*, cores: int, memory_bytes: int) -> int:
    """CPU ranks that one machine may hold: they share cores, so memory (512 MiB a rank of 80 % of it) decides."""
    return max(4, cores, int(0.8 * memory_bytes) // RANK_MEMORY)


def local_capacity() -> dict[str, Any]:
    """What a cluster of our own will offer on this machine, without starting it."""
    cores = os.cpu_count() or 1
    slots = rank_slots(cores=cores, memory_bytes=psutil.virtual_memory().total)
    return {
        "address": "127.0.0.1",
        "cpu_ranks": slots,
        "task_workers": cores,
        "object_store_bytes": OBJECT_STORE_MEMORY,
    }


@contextmanager
def open_session(address: str | None = None, *, object_store_memory: int = OBJECT_STORE_MEMORY) -> Iterator[Session]:
    """Connect, and disconnect at the end; a cluster of our own is also shut down, and its files removed.

    Without ``address`` RAY_ADDRESS is not looked at. Raises SessionError (a ValueError) in one line when Ray does not
    start, when ``address`` does not answer within 15 s, and when versions differ.
    """
    import ray

    if ray.is_initialized():
        raise SessionError("this Python process is connected to Ray already; call ray.shutdown() first")
    opened = _join(address) if address else _start(object_store_memory)
    with _quiet(), opened as session:
        yield session


@contextmanager
def _start(object_store_memory: int) -> Iterator[Session]:
    import ray

    capacity = local_capacity()
    cores = capacity["task_workers"]
    _remove_stale(Path(tempfile.gettempdir()))
    # Unix socket paths end at 107 characters, so the folder is a short one.
    temp_dir = tempfile.mkdtemp(prefix=f"{_TEMP_PREFIX}{os.getpid()}-")
    with _environment(_LOCAL_ENVIRONMENT), _loopback_only(True):
        try:
            try:
                ray.init(
                    address="local",
                    num_cpus=cores,
                    resources={RANK_SLOT: capacity["cpu_ranks"]},
                    object_store_memory=object_store_memory,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="error",
                    _temp_dir=temp_dir,
                )
            except Exception as error:
                raise SessionError(f"Ray did not start on this machine: {_first_line(error)}") from error
            yield Session(address=None, cores=cores, slot=RANK_SLOT, temp_dir=temp_dir)
        finally:
            ray.shutdown()
            shutil.rmtree(temp_dir, ignore_errors=True)


@contextmanager
def _join(address: str) -> Iterator[Session]:
    import ray

    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "token"),
        # Inside a Ray job whose environment has `excludes` too, Ray would refuse ours instead of merging them.
        "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
    }
    with _environment(settings), _loopback_only(False):
        check_address(address)
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="error",
                runtime_env={"py_modules": _own_code(), "excludes": ["__pycache__"]},
            )
        except Exception as error:
            raise SessionError(explain_join(address, str(error))) from error
        try:
            yield Session(address=address, cores=int(ray.cluster_resources().get("CPU", 1)), slot="CPU", temp_dir=None)
        finally:
            ray.shutdown()


def _own_code() -> list[str]:
    """Folders that the ranks of a joined cluster import, so that they run this very code."""
    root = Path(__file__).resolve().parents[2]
    return [str(root / "workbench"), str(root / "kernels")]


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _loopback_only(wanted: bool) -> Iterator[None]:
    """Ray reads the switch when it is first imported; a process that imported it earlier needs the constant as well."""
    import ray._private.ray_constants as constants

    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = not wanted and sys.platform == "linux"
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray prints a dead worker's obituary to standard output, whatever log_to_driver says; there our JSON goes.

    The same text reaches us as the exception of the call, and ends in the cell's reason.
    """
    import ray._private.worker as worker

    before = worker.print_to_stdstream
    worker.print_to_stdstream = _drop
    try:
        yield
    finally:
        worker.print_to_stdstream = before


def _drop(data: dict, ignore_prefix: bool = False) -> None:
    pass


def _remove_stale(folder: Path) -> None:
    """Remove session folders of our drivers that were killed."""
    for stale in folder.glob(f"{_TEMP_PREFIX}*-*"):
        pid = stale.name.removeprefix(_TEMP_PREFIX).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(stale, ignore_errors=True)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
