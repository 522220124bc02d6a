"""The bare exchange priced: the same plan that is measured, hop by hop, with packing and encoding beside it.

R ranks. Every hop starts when the last rank is ready. A hop in rounds costs the sum of its rounds, each the slowest
rank's. Rows are packed for every hop but a first one that finds them in its order; encoded rows are made from bf16
before the first hop and turned back after the last.
"""

from dataclasses import dataclass

import numpy as np

from workbench.comm.bare import BareRows, bare_plan, bare_rows
from workbench.comm.hop import PADDING, Hop
from workbench.simulate.compute import Rates, Stage, copy_stage, rates_of
from workbench.simulate.formats import WIRE_FORMATS
from workbench.simulate.links import links_of
from workbench.simulate.loads import load_of
from workbench.simulate.network import price_hops
from workbench.simulate.passes import Leg
from workbench.simulate.stages import quantise_stage
from workbench.simulate.weights import WIDE_BYTES
from workbench.spec.scenario import Cell


@dataclass(frozen=True)
class BareCost:
    """Legs in order, microseconds of packing before each, and of encoding and decoding; the slowest rank's."""

    rows: BareRows
    legs: tuple[Leg, ...]
    pack_us: tuple[float, ...]
    quantise_us: float

    @property
    def dispatch_us(self) -> float:
        return sum(leg.cost.total_us for leg in self.legs) + sum(self.pack_us)

    @property
    def latency_us(self) -> float:
        return self.dispatch_us + self.quantise_us

    @property
    def rank_us_R(self) -> np.ndarray:
        """Each rank's own time on the links and beside them."""
        return sum((leg.cost.rank_us_R for leg in self.legs), start=np.zeros(self.rows.blocks_R.size))


def bare_cost(cell: Cell) -> BareCost:
    """Raises Unsupported as ``bare_plan``, and for links that this hardware has not."""
    (plan, row_bytes), rows = bare_plan(cell), bare_rows(cell)
    links, node_R = links_of(cell), np.asarray(plan.topology.node_of)
    rates = rates_of(cell.cluster.hardware, cell.precision)
    loads = [load_of(hop, node_R=node_R) for hop in plan.hops]
    costs, packs = price_hops(loads, links.out, row_bytes=row_bytes), []
    legs = [
        Leg(f"dispatch.{load.name}", load, cost, row_bytes) for load, cost in zip(loads, costs, strict=True)
    ]  # fmt: skip
    for number, hop in enumerate(plan.hops):
        packed = number > 0 or not _in_order(hop, rows.num_rows)
        packs.append(_pack_us(hop, rates, row_bytes=row_bytes) if packed and not links.streams else 0.0)
    received_R = plan.hops[-1].send_counts.sum(axis=0).astype(float)
    return BareCost(rows, tuple(legs), tuple(packs), _quantise_us(rows, received_R, rates))


def _in_order(hop: Hop, num_rows: int) -> bool:
    handed_over = [hop.send_rows[rank][: hop.handed_over(rank)] for rank in range(len(hop.send_rows))]
    return all(np.array_equal(rows, np.arange(num_rows)) and PADDING not in rows for rows in handed_over)


def _pack_us(hop: Hop, rates: Rates, *, row_bytes: int) -> float:
    """Read and written once."""
    rows_R = np.array([float(hop.handed_over(rank)) for rank in range(len(hop.send_rows))])
    return _slowest_us(copy_stage("dispatch", rows_R=rows_R, row_bytes=2 * row_bytes, rates=rates), rates)


def _quantise_us(rows: BareRows, received_R: np.ndarray, rates: Rates) -> float:
    if not rows.is_encoded:
        return 0.0
    sent_R = np.full(received_R.size, float(rows.num_rows))
    encode = quantise_stage(WIRE_FORMATS[rows.dtype], rows.hidden, rows_R=sent_R, rates=rates)
    both = rows.row_bytes + WIDE_BYTES * rows.hidden
    decode = copy_stage("quantise", rows_R=received_R, row_bytes=both, rates=rates)
    return _slowest_us(encode, rates) + _slowest_us(decode, rates)


def _slowest_us(stage: Stage, rates: Rates) -> float:
    return float(stage.duration_us_R(rates).max())
