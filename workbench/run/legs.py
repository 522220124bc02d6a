"""What travels in one pass of a cell: over which hops, how many bytes on which links, and how long each hop takes.

Bytes are those that the plans promise; a run that sends others ends as an error. Times are of the payload leg alone:
rows of the right size go over each hop by itself, every rank at its start, with nothing picked, encoded or counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from workbench.comm.execute import DispatchMismatch
from workbench.comm.gradients import WIRE_DTYPE
from workbench.comm.hop import Hop
from workbench.comm.payload import METADATA_BYTES_PER_PAIR, encoded_bytes, payload_bytes
from workbench.comm.plan import DispatchPlan
from workbench.comm.rank_plan import RankHop, RankPlan
from workbench.comm.topology import Link, Topology
from workbench.comm.transport import Counters
from workbench.measure.clock import Clock
from workbench.run.context import RankContext
from workbench.run.prepare import Prepared
from workbench.run.report import Leg
from workbench.spec.scenario import Cell

LINKS: tuple[Link, ...] = ("self", "scale_up", "scale_out")


@dataclass(frozen=True, eq=False)
class Passage:
    """One way over a plan, ``back`` its transpose. Rows are ``row_bytes`` on the wire, ``payload_bytes`` of them are
    data and block scales."""

    name: str
    plan: DispatchPlan
    mine: RankPlan
    row_bytes: int
    payload_bytes: int
    back: bool = False

    @property
    def hops(self) -> list[tuple[Hop, RankHop]]:
        """Hops in the order of travel, with this rank's part."""
        pairs = list(zip(self.plan.hops, self.mine.hops, strict=True))
        return pairs[::-1] if self.back else pairs

    def sent(self, hop: Hop) -> np.ndarray:
        """Bytes from row to column in a hop, int64 [R, R]."""
        return (hop.send_counts.T if self.back else hop.send_counts) * self.row_bytes


def layer_passages(cell: Cell, prepared: Prepared) -> tuple[Passage, ...]:
    """Dispatch and combine of every chunk; of a training step also their backward, the gradients in bf16."""
    passages, hidden, dtypes = [], cell.model.hidden, cell.dispatch
    top_k = prepared.traffic.ids.shape[2]
    for chunk in prepared.chunks:
        metadata = METADATA_BYTES_PER_PAIR * (chunk.plan.carried.width if chunk.plan.carried else 0)
        ways = [("dispatch", dtypes.dispatch_dtype, hidden, metadata, False),
                ("combine", dtypes.combine_dtype, hidden, 0, True)]  # fmt: skip
        if cell.scope.kind == "train_step":
            ways += [("combine.backward", WIRE_DTYPE, hidden, 0, False),
                     ("dispatch.backward", WIRE_DTYPE, hidden + top_k, 0, True)]  # fmt: skip
        passages += [
            Passage(name, chunk.plan, chunk.rank_plan, encoded_bytes(width, dtype) + extra,
                    payload_bytes(hidden, dtype), back)
            for name, dtype, width, extra, back in ways
        ]  # fmt: skip
    return tuple(passages)


def planned_bytes(passages: Sequence[Passage], *, rank: int) -> dict[Link, int]:
    """Bytes that the plans have ``rank`` send in one pass, by link class."""
    planned: dict[Link, int] = dict.fromkeys(LINKS, 0)
    for passage in passages:
        masks = passage.plan.topology.link_masks()
        for hop in passage.plan.hops:
            for link in LINKS:
                planned[link] += int(passage.sent(hop)[rank][masks[link][rank]].sum())
    return planned


def require_planned(counters: Counters, passages: Sequence[Passage], *, rank: int) -> None:
    """Raises DispatchMismatch unless the bytes counted in one pass are the plans', to the byte, on every link class."""
    counted = {link: getattr(counters, f"{link}_bytes") for link in LINKS}
    planned = planned_bytes(passages, rank=rank)
    wrong = [f"{counted[link]} bytes counted on {link}, {planned[link]} planned" for link in LINKS
             if counted[link] != planned[link]]  # fmt: skip
    if wrong:
        raise DispatchMismatch(f"one pass sent what the plan does not say: {'; '.join(wrong)}")


def physical_bytes(passages: Sequence[Passage], *, rank: int) -> int:
    """Payload of the rows that leave ``rank`` in one pass, over all hops."""
    total = 0
    for passage in passages:
        for hop in passage.plan.hops:
            rows = passage.sent(hop)[rank] // max(1, passage.row_bytes)
            total += int(rows.sum() - rows[rank]) * passage.payload_bytes
    return total


def time_legs(passages: Sequence[Passage], context: RankContext, clock: Clock, *, passes: int) -> tuple[Leg, ...]:
    """A leg for each hop of each passage, called ``dispatch.scale_out`` and so on, medians over ``passes``.

    Chunks that go the same way are one leg, their times added. All ranks must call it; counters start anew.
    """
    legs: dict[str, Leg] = {}
    for passage in passages:
        for hop, mine in passage.hops:
            leg = _leg(passage, hop, mine, context, clock, passes)
            same = legs.get(leg.name)
            legs[leg.name] = leg if same is None else _sum(same, leg)
    context.transport.reset()
    return tuple(legs.values())


def _leg(passage: Passage, hop: Hop, mine: RankHop, context: RankContext, clock: Clock, passes: int) -> Leg:
    transport, back = context.transport, passage.back
    handed_over = sum(mine.recv_counts) if back else len(mine.send_rows)
    rows = torch.zeros(handed_over, passage.row_bytes, dtype=torch.uint8, device=context.device)
    carry = transport.carry_back if back else transport.carry
    carry(rows, mine)
    times = []
    for _ in range(passes):
        context.barrier()
        times.append(clock.time(lambda: carry(rows, mine)))
    sent, topology, rank = passage.sent(hop), passage.plan.topology, context.rank
    return Leg(
        f"{passage.name}.{hop.name}", _slowest_link(sent, topology), float(np.median(times)),
        sent=_by_link(sent[rank], topology, rank), received=_by_link(sent[:, rank], topology, rank),
    )  # fmt: skip


def _by_link(bytes_R: np.ndarray, topology: Topology, rank: int) -> dict[str, int]:
    return {link: int(bytes_R[mask[rank]].sum()) for link, mask in topology.link_masks().items()}


def _slowest_link(sent_RR: np.ndarray, topology: Topology) -> Link:
    """The class that the hop is called by: between nodes if any row goes there."""
    masks = topology.link_masks()
    return next((link for link in reversed(LINKS) if sent_RR[masks[link]].any()), "self")


def _sum(first: Leg, second: Leg) -> Leg:
    far = max((first.link, second.link), key=LINKS.index)
    added = {
        name: {link: getattr(first, name)[link] + getattr(second, name)[link] for link in LINKS}
        for name in ("sent", "received")
    }
    return replace(first, link=far, us=first.us + second.us, **added)
