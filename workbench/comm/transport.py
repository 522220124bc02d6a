"""Carries a plan's hops over torch.distributed (gloo or nccl) and counts what it sends.

Rows are uint8 [n, B]. Every wait ends with the timeout of the process group.
"""

import hashlib
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.comm import carriers
from workbench.comm.hop import Carrier
from workbench.comm.rank_plan import RankHop, RankRound
from workbench.comm.topology import Topology

BOOT_ID, NETWORK = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")


@dataclass
class Counters:
    """Sums since the last reset. Bytes are those of the row buffers handed to the backend, by link class."""

    self_bytes: int = 0
    scale_up_bytes: int = 0
    scale_out_bytes: int = 0
    messages: int = 0
    staging_s: float = 0.0
    count_exchange_s: float = 0.0

    @property
    def wire_bytes(self) -> int:
        return self.scale_up_bytes + self.scale_out_bytes


class TorchTransport:
    """One rank's end. ``group`` None is the default process group; a world of one copies and needs no group.

    gloo moves CUDA tensors through host memory; that time is counted apart (``counters.staging_s``).
    """

    def __init__(
        self, group: dist.ProcessGroup | None, *, rank: int, world: int, topology: Topology, device: torch.device
    ) -> None:
        if topology.num_ranks != world:
            raise ValueError(f"topology of {topology.num_ranks} ranks for a world of {world}")
        self.group, self.rank, self.world = group, rank, world
        self.topology, self.device = topology, device
        self.backend = _backend_for(device, group) if world > 1 else "none"
        self.counters = Counters()
        self._staged = self.backend == "gloo" and device.type == "cuda"
        self._links = [topology.link(rank, peer) for peer in range(world)]

    @cached_property
    def _has_whole(self) -> bool:
        """Whether the backend's own all-to-all is to be used; all ranks ask together, at their first one."""
        return self.backend == "nccl" or _on_one_host(self.group, self.world)

    def reset(self) -> Counters:
        """Starts counting anew; returns what was counted."""
        counted, self.counters = self.counters, Counters()
        return counted

    def exchange_counts(self, send_counts: Sequence[int]) -> list[int]:
        """Row counts to every rank in, row counts from every rank out."""
        self._check_length("send_counts", send_counts)
        if self.world == 1:
            return list(send_counts)
        start = time.perf_counter()
        place = "cpu" if self.backend == "gloo" else self.device
        send = torch.tensor(send_counts, dtype=torch.int64, device=place)
        receive = torch.empty_like(send)
        dist.all_to_all_single(receive, send, group=self.group)
        counts = receive.tolist()
        self.counters.count_exchange_s += time.perf_counter() - start
        return counts

    def exchange_rows(
        self, rows: Tensor, send_counts: Sequence[int] | None = None, recv_counts: Sequence[int] | None = None,
        *, out: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Rows grouped by destination out, rows grouped by source in, at once; into ``out`` if given.

        Without counts all blocks are equal. Raises ValueError when counts and rows do not agree.
        """
        received = self._exchange(rows, send_counts, recv_counts, place=None if self._staged else out)
        return received if out is None or received is out else out.copy_(received)

    def carry(self, rows: Tensor, hop: RankHop) -> Tensor:
        """A hop as it is carried: rows picked for it out, rows grouped by source in.

        In host memory what comes in stays until the same hop is carried again: new pages cost as much as the exchange.
        """
        place = self._inbox(hop, "there", hop.recv_counts, rows)
        return self._exchange(rows, hop.send_counts, hop.recv_counts, hop.carrier, hop.rounds, place=place)

    def carry_back(self, rows: Tensor, hop: RankHop) -> Tensor:
        """The same hop backwards: a row for each that came, out; for each that was sent, in.

        What was gathered is not the same for every rank any more, so it goes back as an all-to-all, to be summed.
        """
        carrier = "all_to_all" if hop.carrier == "all_gather" else hop.carrier
        rounds = tuple(step.reverse for step in hop.rounds)
        place = self._inbox(hop, "back", hop.send_counts, rows)
        return self._exchange(rows, hop.recv_counts, hop.send_counts, carrier, rounds, place=place)

    def _inbox(self, hop: RankHop, way: str, counts: list[int], rows: Tensor) -> Tensor | None:
        """Host memory that the hop keeps for what comes in; None on a GPU, whose allocator keeps it."""
        if rows.is_cuda and not self._staged:
            return None
        key, shape = (way, rows.shape[1]), (sum(counts), rows.shape[1])
        if key not in hop.inbox or hop.inbox[key].shape != shape:
            hop.inbox[key] = torch.empty(shape, dtype=torch.uint8)
        return hop.inbox[key]

    def _exchange(
        self, rows: Tensor, send_counts: Sequence[int] | None, recv_counts: Sequence[int] | None,
        carrier: Carrier = "all_to_all", rounds: Sequence[RankRound] = (), *, place: Tensor | None,
    ) -> Tensor:  # fmt: skip
        send_counts, recv_counts = self._splits(rows, send_counts, recv_counts, repeated=carrier == "all_gather")
        self._count(send_counts, rows.shape[1])
        self.counters.messages += self._messages(send_counts, carrier, rounds)
        source = self._to_host(rows) if self._staged else rows.contiguous()
        received = source.new_empty(sum(recv_counts), rows.shape[1]) if place is None else place
        if self.world == 1:
            return received.copy_(source)
        whole = carrier == "all_to_all" and self._has_whole
        exchange = carriers.Exchange(received, source, send_counts, recv_counts, self.group, self.rank)
        carriers.carry(exchange, carrier, rounds=rounds, whole=whole, batched=self.backend == "nccl")
        return self._to_device(received) if self._staged else received

    def barrier(self) -> None:
        """Returns when every rank is here."""
        if self.world > 1:
            devices = [self.device.index] if self.backend == "nccl" else None
            dist.barrier(group=self.group, device_ids=devices)

    def _splits(
        self, rows: Tensor, send_counts: Sequence[int] | None, recv_counts: Sequence[int] | None, *, repeated: bool
    ) -> tuple[list[int], list[int]]:
        if rows.dtype != torch.uint8 or rows.dim() != 2:
            raise ValueError(f"rows must be uint8 [n, B], got {rows.dtype} {tuple(rows.shape)}")
        if (send_counts is None) != (recv_counts is None):
            raise ValueError("send_counts and recv_counts are given both or neither")
        if send_counts is None or recv_counts is None:
            if rows.shape[0] % self.world:
                raise ValueError(f"{rows.shape[0]} rows do not divide over {self.world} ranks; give the counts")
            even = [rows.shape[0] // self.world] * self.world
            return even, even
        self._check_length("send_counts", send_counts)
        self._check_length("recv_counts", recv_counts)
        named, needed = ("reach", max(send_counts)) if repeated else ("sum to", sum(send_counts))
        if needed != rows.shape[0]:
            raise ValueError(f"send_counts {named} {needed}, but there are {rows.shape[0]} rows")
        return list(send_counts), list(recv_counts)

    def _check_length(self, name: str, counts: Sequence[int]) -> None:
        if len(counts) != self.world:
            raise ValueError(f"{name} has {len(counts)} entries for {self.world} ranks")
        if min(counts) < 0:
            raise ValueError(f"{name} has a negative entry: {list(counts)}")

    def _count(self, send_counts: list[int], row_bytes: int) -> None:
        counters = self.counters
        for link, count in zip(self._links, send_counts, strict=True):
            name = f"{link}_bytes"
            setattr(counters, name, getattr(counters, name) + count * row_bytes)

    def _messages(self, send_counts: list[int], carrier: Carrier, rounds: Sequence[RankRound]) -> int:
        if rounds:
            return sum(len(step.sends) for step in rounds)
        leaving = [count for peer, count in enumerate(send_counts) if peer != self.rank]
        return sum(leaving) if carrier == "per_row" else sum(count > 0 for count in leaving)

    def _to_host(self, rows: Tensor) -> Tensor:
        torch.cuda.current_stream(self.device).synchronize()
        start = time.perf_counter()
        host = rows.cpu()
        self.counters.staging_s += time.perf_counter() - start
        return host

    def _to_device(self, rows: Tensor) -> Tensor:
        start = time.perf_counter()
        device = rows.to(self.device)
        torch.cuda.current_stream(self.device).synchronize()
        self.counters.staging_s += time.perf_counter() - start
        return device


def _backend_for(device: torch.device, group: dist.ProcessGroup | None) -> str:
    """What carries this device's tensors; a group may have one backend per kind of device."""
    config = dist.get_backend_config(group)  # "cpu:gloo,cuda:nccl"
    backends = dict(pair.split(":") for pair in config.split(","))
    if device.type not in backends:
        raise ValueError(f"the process group ({config}) carries no {device.type} tensors")
    return backends[device.type]


def _on_one_host(group: dist.ProcessGroup | None, world: int) -> bool:
    """Whether the ranks of a gloo group share a kernel and a network, so that they talk through memory."""
    mine = torch.tensor([_host_number()], dtype=torch.int64)
    everyone = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(everyone, mine, group=group)
    return all(torch.equal(one, mine) for one in everyone)


def _host_number() -> int:
    """The same for two processes of one kernel boot and network namespace, most likely for no others."""
    parts = [socket.gethostname()]
    if BOOT_ID.exists() and NETWORK.exists():
        parts = [BOOT_ID.read_text(), str(NETWORK.stat().st_ino)]
    return int.from_bytes(hashlib.sha256("|".join(parts).encode()).digest()[:7], "big")
