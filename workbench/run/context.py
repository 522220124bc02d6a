"""What a rank has: its place in the group, its device, and the means to talk to the others."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import numpy as np
import psutil
import torch
import torch.distributed as dist

from workbench.comm.topology import Topology
from workbench.comm.transport import TorchTransport

T = TypeVar("T")


class PeerFailed(RuntimeError):
    """Another rank could not go on, so this one did not either."""


@dataclass(frozen=True)
class RankContext:
    """One rank of a gang. With ``world`` 1 no process group is open and nothing is sent. ``profile``: keep a trace."""

    rank: int
    world: int
    device: torch.device
    transport: TorchTransport
    hardware_name: str
    profile: bool = False

    def gather(self, values: Sequence[float]) -> np.ndarray:
        """The values of every rank as [world, n] float64; all ranks must give equally many."""
        own = torch.tensor(values, dtype=torch.float64)
        if self.world == 1:
            return own.numpy()[None]
        gathered = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(gathered, own)
        return torch.stack(gathered).numpy()

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.world > 1:
            self.gather([0.0])

    def agreed(self, make: Callable[[], T]) -> T:
        """What ``make`` gives, once every rank has it; raises its own exception, or PeerFailed naming the ranks."""
        fault, value = None, None
        try:
            value = make()
        except Exception as exception:  # the others must hear of it before it is raised
            fault = exception
        failed = self.gather([float(fault is not None)])[:, 0].nonzero()[0].tolist()
        if fault is not None:
            raise fault
        if failed:
            raise PeerFailed(f"rank {self.rank} stopped because ranks {failed} failed")
        return value

    def synchronize(self) -> None:
        """Wait for this rank's device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def gpu_index(self) -> int | None:
        return self.device.index if self.device.type == "cuda" else None

    def start_peak_memory(self) -> None:
        """Start a new peak for ``peak_memory_bytes``."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_memory_bytes(self) -> int | None:
        """Most device memory that torch held since the start; None on a CPU, where nothing counts it."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None


def open_context(
    *,
    rank: int,
    world: int,
    device_type: str,
    ranks_per_node: int,
    init_method: str | None = None,
    timeout_s: float = 60.0,
    address: str | None = None,
) -> RankContext:
    """Join the gang: gloo carries CPU tensors (and the ranks' agreements), NCCL the GPU's.

    ``address`` is one of this host that the other hosts reach; gloo then uses the network interface that has it, unless
    GLOO_SOCKET_IFNAME names another. Raises RuntimeError when the group does not come together within ``timeout_s``.
    """
    device = _claim_device(device_type)
    interface = interface_of(address) if address is not None else None
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if world > 1:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        if device.type == "cuda":
            os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        dist.init_process_group(
            backend, init_method=init_method, rank=rank, world_size=world, timeout=timedelta(seconds=timeout_s)
        )
    topology = Topology(num_ranks=world, ranks_per_node=ranks_per_node)
    group = dist.group.WORLD if world > 1 else None
    transport = TorchTransport(group=group, rank=rank, world=world, topology=topology, device=device)
    return RankContext(rank=rank, world=world, device=device, transport=transport, hardware_name=_hardware_name(device))


def interface_of(address: str) -> str | None:
    """The network interface of this host that has ``address``; None where none has.

    Left alone gloo takes the one that the host's name leads to, on many hosts the loopback.
    """
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return None


def _claim_device(device_type: str) -> torch.device:
    if device_type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise RuntimeError(f"this rank asks for a GPU and torch sees none (CUDA_VISIBLE_DEVICES={visible!r})")
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


def _hardware_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def close_context(context: RankContext) -> None:
    """Leave the gang."""
    if context.world > 1 and dist.is_initialized():
        dist.destroy_process_group()
