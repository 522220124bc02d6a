"""Overlap of a hybrid cell: measured computation of one rank in the priced pipeline of the cell's parts.

Ranks that are measured alone compute all their rows at once. Their times are split over the parts as the roofline
splits them: a part reads its experts' weights anew, so parts add up to more than the whole. Gate, experts and shared
expert each keep the ratio of measured to priced time that they have as a whole; copies beside exchanges are priced.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.simulate.passes import TRANSFERS, LayerWork, layer_work
from workbench.simulate.timeline import Message, Pass, Span, Step, Task, Timeline, latency_us
from workbench.simulate.traffic import group_traffic, part_traffics
from workbench.spec.scenario import Cell

GROUPS = {"gate": "gate", "shared_expert": "shared", "finish": "finish"}
"""Measured stages by what they belong to; all others that are no exchange are the experts'."""


@dataclass(frozen=True)
class Overlapped:
    """The pipeline of one measured rank, microseconds: its end, what overlap hides, and what parts compute beyond the
    whole; ``spans`` are of that rank alone."""

    rank: int
    latency_us: float
    hidden_us: float
    added_us: float
    spans: tuple[Span, ...]


def overlap_measured(cell: Cell, stages: Sequence[Mapping[str, Any]], *, exchanged: bool) -> Overlapped:
    """``stages`` are rows of the measured table; ``exchanged``: the tokens really travelled, in the cell's parts.

    Raises ValueError where no stage was measured.
    """
    rank, measured_us = _slowest(stages)
    traffic, parts = group_traffic(cell), part_traffics(cell)
    work = layer_work(cell, traffic, parts)
    timed = work if exchanged else layer_work(cell, traffic, (traffic,))
    priced_us = dict.fromkeys(("gate", "experts", "shared"), 0.0)
    for group, task in _grouped(timed):
        priced_us[group] = priced_us.get(group, 0.0) + float(task.duration_us_R[rank])
    factors = {group: measured_us.get(group, 0.0) / us for group, us in priced_us.items() if us and group != "wire"}
    factors["wire"] = 0.0 if exchanged else 1.0  # what was encoded for the wire is in the measured times
    passes = [_seen(one, rank, factors) for one in work.passes]
    timeline = Timeline(1, overlaps=True)
    timeline.run(passes)
    finish_us = measured_us.get("finish", 0.0)
    scaled = sum(float(task.duration_us_R[0]) for one in passes for group, task in _tasks(one) if group != "wire")
    return Overlapped(
        rank,
        latency_us=timeline.latest_us + finish_us,
        hidden_us=max(0.0, latency_us(passes, num_ranks=1, overlaps=False) - timeline.latest_us),
        added_us=scaled + finish_us - sum(measured_us.values()),
        spans=tuple(timeline.spans),
    )


def _slowest(stages: Sequence[Mapping[str, Any]]) -> tuple[int, dict[str, float]]:
    """The measured rank that computes longest, and its times by group."""
    by_rank: dict[int, dict[str, float]] = {}
    for row in stages:
        if row["stage"] not in TRANSFERS:
            group, own = GROUPS.get(row["stage"], "experts"), by_rank.setdefault(row["rank"], {})
            own[group] = own.get(group, 0.0) + row["duration_us"]
    if not by_rank:
        raise ValueError("the measured ranks gave no stages")
    return max(by_rank.items(), key=lambda item: sum(item[1].values()))


def _grouped(work: LayerWork) -> Iterator[tuple[str, Task]]:
    for one in work.passes:
        yield from _tasks(one)


def _tasks(one: Pass) -> Iterator[tuple[str, Task]]:
    """Computation by group; copies beside the exchanges are none of it."""
    for task in (*one.head, *one.beside, *one.tail):
        yield GROUPS.get(task.stage, "experts"), task
    for steps in one.parts:
        for number, step in enumerate(steps):
            for task in step.compute:
                yield _group(task, number), task


def _group(task: Task, number: int) -> str:
    return GROUPS.get(task.stage, "wire" if number == 0 else "experts")


def _seen(one: Pass, rank: int, factors: Mapping[str, float]) -> Pass:
    """The pass as one rank meets it, its computation at measured times, and exchanges as long as for all."""

    def own(tasks: Sequence[Task], number: int = 1, *, measured: bool = True) -> tuple[Task, ...]:
        def factor(task: Task) -> float:
            return factors.get(_group(task, number), 1.0) if measured else 1.0

        return tuple(
            Task(task.stage, task.duration_us_R[[rank]] * factor(task), task.bytes_R[[rank]], task.flops_R[[rank]])
            for task in tasks
        )

    def message(sent: Message | None) -> Message | None:
        if sent is None:
            return None
        transfers = tuple(
            replace(one, own_us_R=np.array([one.total_us]), bytes_R=one.bytes_R[[rank]]) for one in sent.transfers
        )
        return Message(own(sent.before, measured=False), transfers, own(sent.after, measured=False))

    parts = tuple(
        tuple(Step(own(step.compute, number), message(step.send)) for number, step in enumerate(steps))
        for steps in one.parts
    )
    return Pass(own(one.head), parts, own(one.beside), own(one.tail))
