"""Timeline of one MoE layer over its expert-parallel group: local stages a rank, exchanges that wait for the slowest.

Every exchange starts when the last rank is ready and ends for all when its slowest rank is done (a barrier), as a
blocking all-to-all does. ``shared_expert_overlap`` hides the shared expert behind the exchanges and nothing else;
what does not fit there is exposed at the end. With tp > 1 the tp GPUs of a rank split each expert, so partial sums
of [T, H] are all-reduced after combine. The scope ``train_step`` goes on with the backward (``train``): its two
exchanges are the forward's transposed and count as combine and dispatch, and tp reduces the tokens' gradients too.
"""

from dataclasses import dataclass, replace

import numpy as np

from workbench.comm.payload import combine_row_bytes, dispatch_row_bytes
from workbench.simulate.compute import Rates, Stage, bound_by, rates_of
from workbench.simulate.loads import HopLoad
from workbench.simulate.network import (
    HopCost,
    LinkRates,
    all_reduce_us,
    count_exchange_us,
    link_rates,
    price_hop,
)
from workbench.simulate.stages import LayerStages, layer_stages
from workbench.simulate.traffic import GroupTraffic
from workbench.simulate.train import backward_stages, gradient_row_bytes, weights_stage
from workbench.simulate.weights import WIDE_BYTES
from workbench.spec.scenario import Cell


@dataclass(frozen=True)
class Span:
    """One stage of one kind on every rank [R]: start, own duration, bytes and FLOPs."""

    stage: str
    stream: str
    start_us_R: np.ndarray
    duration_us_R: np.ndarray
    bytes_R: np.ndarray
    flops_R: np.ndarray


@dataclass(frozen=True)
class Leg:
    """One priced hop of dispatch or combine: rows on the links and their time."""

    name: str
    load: HopLoad
    cost: HopCost
    row_bytes: int


@dataclass(frozen=True)
class LayerCost:
    """A priced layer. Times in microseconds; ``slowest`` is the rank with the longest expert stages.

    ``parts_us`` sums the slowest rank's time by ``compute``, ``quantise``, ``wire`` (encoding for it), ``dispatch``
    and ``combine`` (both with their local copies), ``count_exchange``, ``tp_reduce``; ``network_us`` is the links' part
    of it and ``hidden_us`` what overlap takes off the sum.
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

    @property
    def exchange_us(self) -> float:
        return sum(self.parts_us[part] for part in ("dispatch", "combine", "count_exchange", "tp_reduce"))


class _Clock:
    """Where each rank stands [R]; adds spans as stages pass."""

    def __init__(self, num_ranks: int, rates: Rates) -> None:
        self.now_us_R = np.zeros(num_ranks)
        self.rates = rates
        self.spans: list[Span] = []

    def local(self, stages: tuple[Stage, ...]) -> None:
        for stage in stages:
            duration = stage.duration_us_R(self.rates)
            self.spans.append(Span(stage.name, "main", self.now_us_R, duration, stage.bytes_R, stage.flops_R))
            self.now_us_R = self.now_us_R + duration

    @property
    def latest_us(self) -> float:
        return float(self.now_us_R.max())

    def exchange(self, stage: str, *, own_us_R: np.ndarray, total_us: float, bytes_R: np.ndarray) -> None:
        self.now_us_R = np.full_like(self.now_us_R, self.latest_us)
        self.spans.append(Span(stage, "network", self.now_us_R, own_us_R, bytes_R, np.zeros_like(own_us_R)))
        self.now_us_R = self.now_us_R + total_us

    def side(self, stage: str, *, start_us: float, duration_us_R: np.ndarray) -> None:
        zero_R = np.zeros_like(duration_us_R)
        self.spans.append(Span(stage, "side", zero_R + start_us, duration_us_R, zero_R, zero_R))


def price_layer(cell: Cell, traffic: GroupTraffic) -> LayerCost:
    """Latency and its parts for one layer under ``traffic``. Raises Unsupported for links that do not exist."""
    rates, links = rates_of(cell.cluster.hardware, cell.precision), link_rates(cell.cluster)
    stages, trains = layer_stages(cell, traffic), cell.scope.kind == "train_step"
    if trains:
        stages = replace(stages, before=weights_stage(cell, traffic, rates=rates) + stages.before)
    dispatch, combine = exchange_legs(cell, traffic, links=links)
    overlap = cell.dispatch.shared_expert_overlap
    clock = _Clock(traffic.num_ranks, rates)
    clock.local(stages.before if overlap else stages.before + stages.shared)
    started = [clock.latest_us]
    counts_us = count_exchange_us(traffic.hops, links, node_R=traffic.node_R)
    _exchange(clock, "count_exchange", counts_us)
    _pass_legs(clock, "dispatch", dispatch)
    clock.local(stages.experts)
    slowest = int(np.argmax(clock.now_us_R))
    started.append(clock.latest_us)
    _pass_legs(clock, "combine", combine)
    clock.local(stages.after)
    tp_us = _tp_reduce_us(cell, links)
    _exchange(clock, "tp_reduce", tp_us)
    totals = {"dispatch": _total(dispatch), "combine": _total(combine), "count_exchange": counts_us, "tp_reduce": tp_us}
    hidden_us = 0.0
    if overlap and stages.shared:
        windows = (totals["dispatch"] + counts_us, totals["combine"])
        hidden_us = _hide_shared(clock, stages, windows=windows, started=started)
    legs = dispatch + combine
    if trains:
        stages, legs = _backward(cell, traffic, clock, links, stages=stages, legs=legs, totals=totals)
    return _summary(clock, stages, totals=totals, slowest=slowest, hidden_us=hidden_us, legs=legs)


def _backward(
    cell: Cell, traffic: GroupTraffic, clock: _Clock, links: LinkRates, *, stages: LayerStages, legs: tuple[Leg, ...],
    totals: dict[str, float],
) -> tuple[LayerStages, tuple[Leg, ...]]:  # fmt: skip
    """Runs the backward after the forward: its stages and legs joined to those given, its exchanges added to totals."""
    back, (out_bytes, back_bytes) = backward_stages(cell, traffic), gradient_row_bytes(cell)
    spread = _legs("combine.backward", traffic.hops, links, out_bytes)
    gathered = _legs("dispatch.backward", tuple(hop.reverse for hop in reversed(traffic.hops)), links, back_bytes)
    clock.local(back.before)
    _pass_legs(clock, "combine.backward", spread)
    clock.local(back.experts)
    _pass_legs(clock, "dispatch.backward", gathered)
    clock.local(back.after)
    reduce_us = _tp_reduce_us(cell, links)
    _exchange(clock, "tp_reduce", reduce_us)
    for part, added in (("combine", _total(spread)), ("dispatch", _total(gathered)), ("tp_reduce", reduce_us)):
        totals[part] += added
    return replace(stages, after=stages.after + back.all), legs + spread + gathered


def exchange_legs(cell: Cell, traffic: GroupTraffic, *, links: LinkRates) -> tuple[tuple[Leg, ...], tuple[Leg, ...]]:
    """Hops of dispatch in order and of combine in reverse, each at the bytes of its own wire dtype.

    Dispatch rows carry expert ids and weights beside the payload; combine rows are bare.
    """
    out_bytes, back_bytes = dispatch_row_bytes(cell), combine_row_bytes(cell)
    back = tuple(hop.reverse for hop in reversed(traffic.hops))
    return _legs("dispatch", traffic.hops, links, out_bytes), _legs("combine", back, links, back_bytes)


def _legs(name: str, hops: tuple[HopLoad, ...], links: LinkRates, row_bytes: int) -> tuple[Leg, ...]:
    return tuple(Leg(f"{name}.{hop.name}", hop, price_hop(hop, links, row_bytes=row_bytes), row_bytes) for hop in hops)


def _total(legs: tuple[Leg, ...]) -> float:
    return sum(leg.cost.total_us for leg in legs)


def _exchange(clock: _Clock, stage: str, total_us: float) -> None:
    if total_us:
        zero_R = np.zeros_like(clock.now_us_R)
        clock.exchange(stage, own_us_R=zero_R + total_us, total_us=total_us, bytes_R=zero_R)


def _pass_legs(clock: _Clock, stage: str, legs: tuple[Leg, ...]) -> None:
    for leg in legs:
        sent_R = (leg.load.up_sent_R + leg.load.out_sent_R) * leg.row_bytes
        clock.exchange(stage, own_us_R=leg.cost.rank_us_R, total_us=leg.cost.total_us, bytes_R=sent_R)


def _tp_reduce_us(cell: Cell, links: LinkRates) -> float:
    assert cell.model is not None
    num_bytes = cell.workload.tokens_per_rank * cell.model.hidden * WIDE_BYTES
    return all_reduce_us(num_bytes, num_ranks=cell.parallel.tp, links=links)


def _hide_shared(clock: _Clock, stages: LayerStages, *, windows: tuple[float, float], started: list[float]) -> float:
    """Puts the shared expert beside the exchanges; the rest runs at the end. Returns the microseconds hidden."""
    left_R = sum(stage.duration_us_R(clock.rates) for stage in stages.shared)
    hidden = 0.0
    for window_us, start_us in zip(windows, started, strict=True):
        inside_R = np.minimum(left_R, window_us)
        clock.side("shared_expert", start_us=start_us, duration_us_R=inside_R)
        left_R = left_R - inside_R
        hidden += float(inside_R.max())
    if left_R.any():
        clock.spans.append(
            Span("shared_expert", "main", clock.now_us_R, left_R, np.zeros_like(left_R), np.zeros_like(left_R))
        )
        clock.now_us_R = clock.now_us_R + left_R
    return hidden


def _summary(
    clock: _Clock, stages: LayerStages, *, totals: dict[str, float], slowest: int, hidden_us: float,
    legs: tuple[Leg, ...],
) -> LayerCost:  # fmt: skip
    rates = clock.rates
    parts = {"compute": 0.0, "quantise": 0.0, "wire": 0.0} | totals
    for stage in stages.all:
        parts[stage.part] += float(stage.duration_us_R(rates)[slowest])
    network_us = sum(totals.values())
    moved = float(sum(stage.bytes_R[slowest] for stage in stages.all))
    math_us = float(sum(stage.math_us_R()[slowest] for stage in stages.all))
    busy_R = sum(span.duration_us_R for span in clock.spans if span.stream != "side")
    return LayerCost(
        latency_us=clock.latest_us,
        slowest=slowest,
        busy_us_R=np.asarray(busy_R),
        parts_us=parts,
        network_us=network_us,
        hidden_us=hidden_us,
        bound_by=bound_by(stages.all, rates, rank=slowest, network_us=network_us),
        ideal_us=max(moved / rates.bytes_per_us, math_us),
        memory_bytes=moved,
        flops=float(sum(stage.flops_R[slowest] for stage in stages.all)),
        spans=tuple(clock.spans),
        legs=legs,
    )
