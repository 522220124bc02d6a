"""One MoE layer over its expert-parallel group, priced: local stages a rank, exchanges that wait for the slowest.

Every exchange starts when the last rank is ready and ends for all when its slowest rank is done (a barrier), as a
blocking all-to-all does. ``dispatch.overlap`` and ``shared_expert_overlap`` put messages beside computation in the
order of a measured layer (``passes``, ``timeline``). With tp > 1 the tp GPUs of a rank split each expert, so partial
sums of [T, H] are all-reduced after combine. The scope ``train_step`` goes on with the backward (``train``): its two
exchanges are the forward's transposed and count as combine and dispatch, and tp reduces the tokens' gradients too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.simulate.compute import bound_by, rates_of
from workbench.simulate.network import band_us
from workbench.simulate.passes import TRANSFERS, LayerWork, Leg, exchange_legs, layer_work
from workbench.simulate.timeline import Span, Timeline, busy_us, latency_us
from workbench.simulate.traffic import GroupTraffic
from workbench.spec.scenario import Cell

__all__ = ["LayerCost", "Leg", "OffloadCost", "Span", "exchange_legs", "price_layer"]


@dataclass(frozen=True)
class OffloadCost:
    """Of one layer and step on average: ``stall_us`` of the rank that waits longest, ``bytes_per_step`` of the one that
    copies most, hits over all ranks; ``asking_us`` is what asking the device takes besides."""

    hit_rate: float | None
    stall_us: float
    bytes_per_step: float
    asking_us: float

    @property
    def added_us(self) -> float:
        return self.stall_us + self.asking_us


@dataclass(frozen=True)
class LayerCost:
    """A priced layer. Times in microseconds; ``slowest`` is the rank with the longest expert stages.

    ``parts_us`` sums the slowest rank's time by ``compute``, ``quantise``, ``wire`` (encoding for it), ``dispatch``
    and ``combine`` (both with their local copies), ``count_exchange``, ``tp_reduce``; ``network_us`` is the links' part
    of it and ``hidden_us`` what overlap takes off the same stages run one after the other. ``expert_us`` is what the
    slowest rank's routed experts take, ``compute`` and ``quantise`` together. ``message_band_us`` are the microseconds
    from the latency to both ends of the messages' band, as far as nothing hides them.
    """

    latency_us: float
    slowest: int
    busy_us_R: np.ndarray
    parts_us: dict[str, float]
    network_us: float
    hidden_us: float
    bound_by: str
    ideal_us: float
    memory_bytes: float
    flops: float
    spans: tuple[Span, ...]
    legs: tuple[Leg, ...]
    expert_us: float = 0.0
    message_band_us: tuple[float, float] = (0.0, 0.0)
    offload: OffloadCost | None = None

    @property
    def exchange_us(self) -> float:
        return sum(self.parts_us[part] for part in TRANSFERS)


def price_layer(cell: Cell, traffic: GroupTraffic, *, parts: Sequence[GroupTraffic] | None = None) -> LayerCost:
    """Latency and its parts for one layer under ``traffic``, which travels as ``parts`` or all at once.

    Raises Unsupported for links that do not exist.
    """
    parts = (traffic,) if parts is None else parts
    overlaps = len(parts) > 1 or cell.dispatch.shared_expert_overlap
    work, ranks = layer_work(cell, traffic, parts), traffic.num_ranks
    timeline = Timeline(ranks, overlaps=overlaps)
    timeline.run(work.passes)
    hidden_us = 0.0
    if overlaps:
        hidden_us = max(0.0, latency_us(work.passes, num_ranks=ranks, overlaps=False) - timeline.latest_us)
    return _summary(cell, work, timeline, hidden_us=hidden_us)


def _summary(cell: Cell, work: LayerWork, timeline: Timeline, *, hidden_us: float) -> LayerCost:
    rates, stages = rates_of(cell.cluster.hardware, cell.precision), work.stages
    slowest = int(np.argmax(work.expert_us_R))
    parts = {"compute": 0.0, "quantise": 0.0, "wire": 0.0} | work.totals_us
    for stage in stages:
        parts[stage.part] += float(stage.duration_us_R(rates)[slowest])
    network_us = sum(work.totals_us.values())
    band, seen = band_us(leg.cost for leg in work.legs), 1 - min(1.0, hidden_us / network_us) if network_us else 1.0
    moved = float(sum(stage.bytes_R[slowest] for stage in stages))
    math_us = float(sum(stage.math_us_R()[slowest] for stage in stages))
    return LayerCost(
        latency_us=timeline.latest_us,
        slowest=slowest,
        busy_us_R=busy_us(timeline.spans),
        parts_us=parts,
        network_us=network_us,
        hidden_us=hidden_us,
        bound_by=bound_by(stages, rates, rank=slowest, network_us=max(0.0, network_us - hidden_us)),
        ideal_us=max(moved / rates.bytes_per_us, math_us),
        memory_bytes=moved,
        flops=float(sum(stage.flops_R[slowest] for stage in stages)),
        spans=tuple(timeline.spans),
        legs=work.legs,
        expert_us=float(work.expert_us_R[slowest]),
        message_band_us=(seen * band[0], seen * band[1]),
    )
