"""Experts kept by the host or on its drives: hits of a cache under the cell's own routing, and what its misses cost.

The cache is replayed (``expert_cache``) over ``workload.steps`` steps from the state that a measured cell starts from.
A miss is copied over one link, copies one after the other: to the GPU's PCIe, no faster than its share of the host's
memory, or of the drives for ``nvme``. Without ``prefetch`` a layer waits for each wave's copies; with it copies run
beside the work. ``compute: cpu`` copies nothing: missed experts are read where they lie, bound by the host's memory,
beside the GPU's own, and only activations travel.

Idealised: an expert is copied whole, its layout without padding, and the processor's FLOPs are never the limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from workbench.balance.dynamics import reached
from workbench.balance.history import placed_before
from workbench.simulate.expert_cache import ExpertSlots, ahead_of
from workbench.simulate.layer import LayerCost, OffloadCost
from workbench.simulate.traffic import deal, sampled_tokens_per_rank, scale_of
from workbench.simulate.weights import WIDE_BYTES, expert_bytes, resident_experts
from workbench.spec.cluster import Cluster
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell
from workbench.workload.sources import source_tokens
from workbench.workload.traffic import route_all

PCIE_EFFICIENCY = 55.5 / 64
"""Copies from pinned memory to an H200, of what its link could carry."""
ASKING_US = 600.0
"""A layer without prefetch asks the device which experts it wants: host and device wait for each other once a call.
Read off the offloaded layers of one token in a run of 2026-12-01 on one H200, latency less stall and resident layer."""
MOST_RANKS = 512
SPARE = 8
"""With pinned experts, one slot in this many is left to the others, as in a measured cell."""

Requests = tuple[tuple[tuple[int, ...], ...], ...]
"""Local experts asked for, ascending, by step and rank."""


def unsupported_offload(cell: Cell) -> str | None:
    """Why the tier cannot be priced on this cluster."""
    host, tier = cell.cluster.host, cell.offload.tier
    if tier != "none" and cell.ep > MOST_RANKS:
        return f"offload.tier {tier}: caches are replayed for up to {MOST_RANKS} ranks, not for parallel.ep {cell.ep}"
    if tier == "nvme" and (host is None or host.nvme_gb_per_s is None):
        return "offload.tier nvme needs cluster.host.nvme_gb_per_s"
    if tier != "none" and cell.offload.compute == "cpu" and host is None:
        return "offload.compute cpu needs cluster.host.memory_gb_per_s"
    if tier != "none" and cell.cluster.device != "cpu" and not cell.cluster.hardware.pcie_gb_per_s:
        return f"offload.tier {tier} needs a link to the host, and {cell.cluster.hardware.name} has none in the catalog"
    return None


def link_bytes_per_us(cluster: Cluster, *, tier: str) -> float:
    """Rate at which one GPU is given experts while every GPU of its node is; on a processor a copy in its memory."""
    part, host = cluster.hardware, cluster.host
    if cluster.device == "cpu":
        rates = [part.memory_tb_per_s * 1e6 / 2]
    else:
        rates = [part.pcie_gb_per_s * 1e3 * PCIE_EFFICIENCY]
    if host is not None:
        rates.append(host.memory_gb_per_s * 1e3 / cluster.gpus_per_node)
        if tier == "nvme" and host.nvme_gb_per_s is not None:
            rates.append(host.nvme_gb_per_s * 1e3 / cluster.gpus_per_node)
    return min(rates)


def offload_cost(cell: Cell, *, layer: int = 0, expert_us: float, rest_us: float) -> OffloadCost:
    """The cache of one layer over the workload's steps. ``expert_us`` is what the experts take where all are resident,
    ``rest_us`` the layer's other time. Raises Unsupported for a tier that the cluster has not."""
    reason = unsupported_offload(cell)
    if reason is not None:
        raise Unsupported(reason)
    requests, num_slots = requests_of(cell, layer=layer), placed_before(cell, layer=layer).slots_per_rank
    ranks = range(cell.ep)
    replays = [_replay(cell, [step[rank] for step in requests], num_slots, expert_us, rest_us) for rank in ranks]
    asked = sum(hits + misses for hits, misses, _, _ in replays)
    stalls_RS = np.array([stalls for _, _, stalls, _ in replays])
    steps = len(requests)
    waits = cell.offload.compute == "gpu" and not cell.offload.prefetch
    return OffloadCost(
        hit_rate=sum(hits for hits, _, _, _ in replays) / asked if asked else None,
        stall_us=float(stalls_RS.max(axis=0).mean()),
        bytes_per_step=max(moved for _, _, _, moved in replays) / steps,
        asking_us=ASKING_US if waits and cell.cluster.device != "cpu" else 0.0,
    )


def with_offload(cell: Cell, cost: LayerCost, *, layer: int = 0) -> LayerCost:
    """The layer with what its offloaded experts make it wait; unchanged where all live on the GPU."""
    if cell.offload.tier == "none":
        return cost
    found = offload_cost(cell, layer=layer, expert_us=cost.expert_us, rest_us=cost.latency_us - cost.expert_us)
    parts_us = cost.parts_us | {"compute": cost.parts_us["compute"] + found.added_us}
    return replace(
        cost, latency_us=cost.latency_us + found.added_us, busy_us_R=cost.busy_us_R + found.added_us,
        parts_us=parts_us, offload=found, bound_by="offload" if 2 * found.added_us > cost.latency_us else cost.bound_by,
    )  # fmt: skip


def requests_of(cell: Cell, *, layer: int = 0) -> Requests:
    """Local experts that each step asks of each rank, from the routing that a measured cell would have."""
    return _requests(_Key(cell.cell_id, layer, cell))


@dataclass(frozen=True)
class _Key:
    cell_id: str
    layer: int
    cell: Cell

    def __hash__(self) -> int:
        return hash((self.cell_id, self.layer))


@lru_cache(maxsize=32)
def _requests(key: _Key) -> Requests:
    cell, expert_map = key.cell, placed_before(key.cell, layer=key.layer)
    sources, per_rank, steps = source_tokens(cell), expert_map.slots_per_rank, []
    for step in range(cell.workload.steps):
        traffic = route_all(
            cell, layer=key.layer, step=step, max_tokens=sampled_tokens_per_rank(cell),
            steer=reached(cell, layer=key.layer),
        )  # fmt: skip
        slots = deal(expert_map, traffic.ids, sampled=scale_of(sources, traffic) != 1.0)
        asked = np.unique(slots[slots >= 0])
        rank = asked // per_rank
        steps.append(tuple(tuple((asked[rank == r] % per_rank).tolist()) for r in range(cell.ep)))
    return tuple(steps)


def _replay(
    cell: Cell, requests: Sequence[Sequence[int]], num_slots: int, expert_us: float, rest_us: float
) -> tuple[int, int, list[float], float]:
    """Hits, misses, the stall of every step, and bytes moved over all steps of one rank."""
    slots = _slots(cell, requests, num_slots)
    if cell.offload.compute == "cpu":
        return _beside(cell, slots.resident, requests, expert_us)
    return _Copies(cell, slots, expert_us, rest_us).run(requests)


def _slots(cell: Cell, requests: Sequence[Sequence[int]], count: int) -> ExpertSlots:
    """The cache as a measured cell starts it: the first experts, or for ``pinned`` those most asked for."""
    held, policy = resident_experts(cell, count), cell.offload.cache
    uses = np.bincount(np.concatenate([*map(np.array, requests), []]).astype(int), minlength=count)
    by_use = np.argsort(-uses, kind="stable").tolist()
    keep = count if held == count else held - max(1, held // SPARE)
    if policy == "pinned":
        return ExpertSlots(held, policy, frozenset(by_use[:keep]), by_use[:held])
    return ExpertSlots(held, policy, initial=range(held))


class _Copies:
    """A clock of the GPU's work and one of its link, advanced call by call."""

    def __init__(self, cell: Cell, slots: ExpertSlots, expert_us: float, rest_us: float) -> None:
        assert cell.model is not None
        self.ahead, self.slots, self.expert_us, self.rest_us = cell.offload.prefetch, slots, expert_us, rest_us
        self.one_bytes = expert_bytes(cell.model, cell.precision, tp=cell.parallel.tp)
        self.one_us = self.one_bytes / link_bytes_per_us(cell.cluster, tier=cell.offload.tier)
        self.alone = cell.cluster.device == "cpu"
        self.now_us = self.link_us = 0.0
        self.arrival_us: dict[int, float] = {}
        self.hits = self.misses = self.copied = 0

    def run(self, requests: Sequence[Sequence[int]]) -> tuple[int, int, list[float], float]:
        after = [*requests[1:], ()]
        stalls = [self._step(now, following) for now, following in zip(requests, after, strict=True)]
        return self.hits, self.misses, stalls, float(self.copied * self.one_bytes)

    def _step(self, experts: Sequence[int], following: Sequence[int]) -> float:
        self.now_us += self.rest_us
        waves, stall_us = self.slots.waves(experts, overlap=self.ahead), 0.0
        for index, wave in enumerate(waves):
            fetched = self.slots.fetch(wave)
            self.hits += fetched.hits
            self.misses += len(fetched.copied) + len(fetched.early)
            self._copy(fetched.copied)
            ready_us = max((self.arrival_us[e] for e in (*fetched.copied, *fetched.early)), default=0.0)
            stall_us += max(0.0, ready_us - self.now_us)
            self.now_us = max(self.now_us, ready_us)
            if self.ahead:
                lacking, needed = ahead_of(waves[index + 1 :], self.slots)
                self._copy(self.slots.prefetch(lacking or list(following), using=[*wave, *needed]))
                stall_us += self._wait_beside()
            self.now_us += self.expert_us * len(wave) / len(experts)
        self.slots.release()
        return stall_us

    def _wait_beside(self) -> float:
        """On a processor nothing runs beside the work, so copies made ahead take their time at once."""
        waited_us = max(0.0, self.link_us - self.now_us) if self.alone else 0.0
        self.now_us += waited_us
        return waited_us

    def _copy(self, experts: Sequence[int]) -> None:
        """Copies start once the link is free, and no earlier than the work before them is done."""
        self.link_us = max(self.link_us, self.now_us) if experts else self.link_us
        for expert in experts:
            self.link_us += self.one_us
            self.copied += 1
            self.arrival_us[expert] = self.link_us


def _beside(
    cell: Cell, resident: set[int], requests: Sequence[Sequence[int]], expert_us: float
) -> tuple[int, int, list[float], float]:
    """Missed experts computed by the host: the stall is what they take beyond the GPU's own."""
    assert cell.model is not None
    host, link = cell.cluster.host, link_bytes_per_us(cell.cluster, tier="host")
    assert host is not None
    rate = host.memory_gb_per_s * 1e3 / cell.cluster.gpus_per_node
    if cell.offload.tier == "nvme" and host.nvme_gb_per_s is not None:
        rate = min(rate, host.nvme_gb_per_s * 1e3 / cell.cluster.gpus_per_node)
    one_us = expert_bytes(cell.model, cell.precision, tp=cell.parallel.tp) / rate
    pair_bytes = 2 * WIDE_BYTES * cell.model.hidden
    hits = misses = 0
    stalls, moved = [], 0.0
    for experts in requests:
        here = sum(e in resident for e in experts)
        away = len(experts) - here
        hits, misses = hits + here, misses + away
        share = away / len(experts) if experts else 0.0
        sent = share * cell.workload.tokens_per_rank * cell.model.top_k * pair_bytes
        moved += sent
        stalls.append(max(0.0, away * one_us + sent / link - expert_us * (1 - share)))
    return hits, misses, stalls, moved


def host_bytes(cell: Cell, *, layers: int) -> int:
    """Experts that the GPUs of one node keep with their host, over so many layers."""
    assert cell.model is not None
    redundant = cell.balance.placement.redundant_experts
    assert isinstance(redundant, int), "a planned cell has its redundancy decided"
    one_rank = (
        (cell.model.num_experts + redundant) // cell.ep * expert_bytes(cell.model, cell.precision, tp=cell.parallel.tp)
    )
    return one_rank * layers * cell.cluster.gpus_per_node


def host_shortage_bytes(cell: Cell, *, layers: int) -> int:
    """What the node's memory lacks for them; 0 where it holds them, or where its size is not known."""
    if cell.offload.tier != "host" or cell.cluster.host is None:
        return 0
    return max(0, host_bytes(cell, layers=layers) - round(cell.cluster.host.memory_gb * 1e9))
