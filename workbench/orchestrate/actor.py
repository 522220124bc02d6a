"""One rank of a gang: a process with its own device that answers one call a cell."""

import os
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell

if TYPE_CHECKING:
    from workbench.run.context import RankContext

Task = Callable[["RankContext", Cell], Any]
TRACE_LINES = 12


@dataclass(frozen=True)
class RankFacts:
    """Where a rank runs and what it sees; ``cuda_visible_devices`` is the variable's value, None where unset.

    ``node`` is Ray's id of its node, and ``address`` the one by which Ray's nodes know that node.
    """

    rank: int
    pid: int
    host: str
    node: str
    address: str
    device: str
    cuda_visible_devices: str | None
    num_gpus_seen: int
    num_threads: int


@dataclass(frozen=True)
class RankFailure:
    """What a rank's task raised, in words, so that no exception has to travel."""

    rank: int
    message: str
    is_unsupported: bool
    trace: str


class RankActor:
    """The actor behind a rank. It holds the process group open between cells."""

    def __init__(self, rank: int, device: str, num_threads: int) -> None:
        self._rank = rank
        self._device = device
        self._num_threads = num_threads
        self._context: RankContext | None = None

    def warm(self) -> RankFacts:
        """Import what cells need and say where this rank is."""
        import ray
        import torch

        import workbench.run.measured  # noqa: F401 - imported here so that no cell pays for it

        torch.set_num_threads(self._num_threads)
        return RankFacts(
            rank=self._rank,
            pid=os.getpid(),
            host=socket.gethostname(),
            node=ray.get_runtime_context().get_node_id(),
            address=ray.util.get_node_ip_address(),
            device=self._device,
            cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
            num_gpus_seen=torch.cuda.device_count(),
            num_threads=torch.get_num_threads(),
        )

    def rendezvous(self, is_local: bool, folder: str | None, attempt: str) -> str:
        """Where the ranks meet: a file on this machine, else a port of this rank's host."""
        if is_local:
            return f"file://{folder}/meet-{attempt}"
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"

    def open(
        self, rank: int, world: int, ranks_per_node: int, init_method: str, timeout_s: float, *, address: str | None
    ) -> None:
        """Join the process group of the gang as ``rank``, leaving an earlier one.

        ``address``: that of this node, whose network interface gloo then uses.
        """
        from workbench.run.context import close_context, open_context

        if self._context is not None:
            close_context(self._context)
            self._context = None
        self._rank = rank
        self._context = open_context(
            rank=rank,
            world=world,
            device_type=self._device,
            init_method=init_method,
            timeout_s=timeout_s,
            ranks_per_node=ranks_per_node,
            address=address,
        )

    def run(self, task: Task, cell: Cell) -> Any:
        """``task(context, cell)``, or a RankFailure."""
        assert self._context is not None
        try:
            return task(self._context, cell)
        except Unsupported as gap:
            return RankFailure(self._rank, gap.reason, True, "")
        except Exception as error:
            trace = "".join(traceback.format_exception(error)[-TRACE_LINES:])
            return RankFailure(self._rank, f"{type(error).__name__}: {error}", False, trace)
