"""A layer's priced stages and hops in the order in which they run: what overlaps what is for the timeline to say.

- chunk: one gate, then encoding, dispatch, experts and combine of each chunk in a pipeline; the shared expert after it.
- two_batch: each micro-batch with a gate and a shared expert of its own.
- shared_expert_overlap: the shared expert is computed while the first messages travel, and before the experts.
Without overlap there is one part, and the order of local stages decides nothing.

The backward is a pipeline of its own: gradients out, experts, gradients back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.comm.payload import combine_row_bytes, dispatch_row_bytes
from workbench.simulate.compute import Rates, Stage, rates_of
from workbench.simulate.links import links_of
from workbench.simulate.loads import HopLoad
from workbench.simulate.network import HopCost, LinkRates, all_reduce_us, count_exchange_us, price_hops
from workbench.simulate.stages import LayerStages, layer_stages
from workbench.simulate.timeline import Message, Pass, Step, Task, Transfer
from workbench.simulate.traffic import GroupTraffic
from workbench.simulate.train import BackwardStages, backward_stages, gradient_row_bytes, gradient_sums, weights_stage
from workbench.simulate.weights import WIDE_BYTES
from workbench.spec.scenario import Cell

TRANSFERS = ("dispatch", "combine", "count_exchange", "tp_reduce")


@dataclass(frozen=True)
class Leg:
    """One priced hop of dispatch or combine: rows on the links and their time."""

    name: str
    load: HopLoad
    cost: HopCost
    row_bytes: int


@dataclass(frozen=True)
class LayerWork:
    """All that a layer does. ``stages`` are the local ones of all parts, ``expert_us_R`` those of the experts' side;
    ``totals_us`` the exchanges by TRANSFERS, each once for every time it happens."""

    passes: tuple[Pass, ...]
    stages: tuple[Stage, ...]
    legs: tuple[Leg, ...]
    totals_us: dict[str, float]
    expert_us_R: np.ndarray


def layer_work(cell: Cell, traffic: GroupTraffic, parts: Sequence[GroupTraffic]) -> LayerWork:
    """The work of the tokens of ``traffic``, which travel as ``parts``."""
    return _Builder(cell, traffic, tuple(parts)).work()


def exchange_legs(
    cell: Cell, traffic: GroupTraffic, *, links: LinkRates, back: LinkRates | None = None
) -> tuple[tuple[Leg, ...], tuple[Leg, ...]]:
    """Hops of dispatch in order and of combine in reverse, each at the bytes of its own wire dtype; ``back`` are
    combine's links where they are not those of dispatch.

    Dispatch rows carry expert ids and weights beside the payload; combine rows are bare.
    """
    out_bytes, back_bytes = dispatch_row_bytes(cell), combine_row_bytes(cell)
    return (
        _legs("dispatch", traffic.hops, links, out_bytes),
        _legs("combine", _back(traffic.hops), back or links, back_bytes),
    )


def _legs(name: str, hops: tuple[HopLoad, ...], links: LinkRates, row_bytes: int) -> tuple[Leg, ...]:
    costs = price_hops(hops, links, row_bytes=row_bytes)
    return tuple(Leg(f"{name}.{hop.name}", hop, cost, row_bytes) for hop, cost in zip(hops, costs, strict=True))


def _back(hops: tuple[HopLoad, ...]) -> tuple[HopLoad, ...]:
    return tuple(hop.reverse for hop in reversed(hops))


def tasks_of(stages: Sequence[Stage], rates: Rates) -> tuple[Task, ...]:
    """Stages with their durations."""
    return tuple(Task(stage.name, stage.duration_us_R(rates), stage.bytes_R, stage.flops_R) for stage in stages)


class _Builder:
    """Collects stages, legs and totals while the passes are put together."""

    def __init__(self, cell: Cell, traffic: GroupTraffic, parts: tuple[GroupTraffic, ...]) -> None:
        self.cell, self.traffic, self.parts = cell, traffic, parts
        self.rates, self.links = rates_of(cell.cluster.hardware, cell.precision), links_of(cell)
        self.own_gates = len(parts) > 1 and cell.dispatch.overlap.kind == "two_batch"
        self.beside = cell.dispatch.shared_expert_overlap
        self.totals_us = dict.fromkeys(TRANSFERS, 0.0)
        self.legs: list[Leg] = []
        self.stages: list[Stage] = []
        self.expert_us_R = np.zeros(traffic.num_ranks)

    def work(self) -> LayerWork:
        forward = [layer_stages(self.cell, part) for part in self.parts]
        whole = forward[0] if len(self.parts) == 1 else layer_stages(self.cell, self.traffic)
        passes, trains = [self._forward(forward, whole)], self.cell.scope.kind == "train_step"
        passes += self._tp_reduce()
        if trains:
            backward = [backward_stages(self.cell, part) for part in self.parts]
            last = backward[0] if len(self.parts) == 1 else backward_stages(self.cell, self.traffic)
            passes += [self._backward(backward, last), *self._tp_reduce()]
        return LayerWork(
            tuple(passes), tuple(self.stages), tuple(self.legs), dict(self.totals_us), np.asarray(self.expert_us_R)
        )

    def _forward(self, staged: list[LayerStages], whole: LayerStages) -> Pass:
        trains = self.cell.scope.kind == "train_step"
        head = weights_stage(self.cell, self.traffic, rates=self.rates) if trains else ()
        shared = [one.shared for one in staged] if self.own_gates else [whole.shared]
        if not self.own_gates:
            head += whole.gate
        parts = tuple(self._part(part, one) for part, one in zip(self.parts, staged, strict=True))
        flat = tuple(stage for stages in shared for stage in stages)
        late = () if self.own_gates or self.beside else flat
        return Pass(self._local(head), parts, self._local(flat) if self.beside else (), self._local(late))

    def _part(self, traffic: GroupTraffic, one: LayerStages) -> tuple[Step, ...]:
        first = (one.gate if self.own_gates else ()) + one.encode
        last = one.shared if self.own_gates and not self.beside else ()
        out, back = (), ()
        if traffic.hops:
            out, back = exchange_legs(self.cell, traffic, links=self.links.out, back=self.links.back)
        counts_us = count_exchange_us(traffic.hops, self.links.out, node_R=traffic.node_R)
        counts = self._transfer("count_exchange", counts_us)
        self.expert_us_R = self.expert_us_R + sum(stage.duration_us_R(self.rates) for stage in one.experts)
        pack, unpack = self._copies(one.pack, one.unpack)
        return self._steps(
            traffic, (first, one.experts, last), pack, out, (one.encode_back, unpack), back, counts=counts
        )

    def _backward(self, staged: list[BackwardStages], whole: BackwardStages) -> Pass:
        out_bytes, back_bytes = gradient_row_bytes(self.cell)
        parts = []
        for traffic, one in zip(self.parts, staged, strict=True):
            out = _legs("combine.backward", traffic.hops, self.links.out, out_bytes)
            back = _legs("dispatch.backward", _back(traffic.hops), self.links.back, back_bytes)
            own = ((() if self.beside else one.shared) + one.gate) if self.own_gates else ()
            pack, unpack = self._copies(one.pack, one.unpack)
            parts.append(self._steps(traffic, ((), one.experts, own), pack, out, ((), unpack), back))
        shared = tuple(stage for one in staged for stage in one.shared) if self.own_gates else whole.shared
        late = () if self.own_gates else (() if self.beside else whole.shared) + whole.gate
        beside = self._local(shared) if self.beside else ()
        sums = gradient_sums(self.cell, len(parts), self.traffic)
        return Pass((), tuple(parts), beside, self._local(late + sums + whole.finish))

    def _steps(
        self, traffic: GroupTraffic, compute: tuple[tuple[Stage, ...], ...], pack: tuple[Stage, ...],
        out: tuple[Leg, ...], around: tuple[tuple[Stage, ...], tuple[Stage, ...]], back: tuple[Leg, ...], *,
        counts: tuple[Transfer, ...] = (),
    ) -> tuple[Step, ...]:  # fmt: skip
        first, experts, last = (self._local(stages) for stages in compute)
        if not traffic.hops:
            return Step(first), Step(experts), Step(last)
        sent = Message(self._local(pack), counts + self._hops(out))
        returned = Message(self._local(around[0]), self._hops(back), self._local(around[1]))
        return Step(first, sent), Step(experts, returned), Step(last)

    def _copies(self, *beside: tuple[Stage, ...]) -> tuple[tuple[Stage, ...], ...]:
        """Copies beside an exchange, which streaming kernels make while they send: their time is in the links'."""
        return tuple(() for _ in beside) if self.links.streams else beside

    def _local(self, stages: tuple[Stage, ...]) -> tuple[Task, ...]:
        self.stages += stages
        return tasks_of(stages, self.rates)

    def _hops(self, legs: tuple[Leg, ...]) -> tuple[Transfer, ...]:
        self.legs += legs
        transfers = []
        for leg in legs:
            stage = leg.name.removesuffix(f".{leg.load.name}")
            self.totals_us[stage.removesuffix(".backward")] += leg.cost.total_us
            sent_R = (leg.load.up_sent_R + leg.load.out_sent_R) * leg.row_bytes
            transfers.append(Transfer(stage, leg.cost.rank_us_R, leg.cost.total_us, sent_R))
        return tuple(transfers)

    def _transfer(self, stage: str, total_us: float) -> tuple[Transfer, ...]:
        self.totals_us[stage] += total_us
        zero_R = np.zeros(self.traffic.num_ranks)
        return (Transfer(stage, zero_R + total_us, total_us, zero_R),) if total_us else ()

    def _tp_reduce(self) -> list[Pass]:
        """Partial sums of [T, H] over the GPUs of a rank, once the tokens are back."""
        cell = self.cell
        assert cell.model is not None
        num_bytes = cell.workload.tokens_per_rank * cell.model.hidden * WIDE_BYTES
        total_us = all_reduce_us(num_bytes, num_ranks=cell.parallel.tp, links=self.links.out)
        transfers = self._transfer("tp_reduce", total_us)
        return [Pass((), ((Step((), Message((), transfers)),),))] if transfers else []
