"""What every rank does when: computation on one stream, messages on the other, several parts of the tokens in turn.

R ranks. The order is that of a measured layer (``workbench.run.overlap``): parts advance one leg at a time, so with
three chunks the lane carries d0 d1 d2 c0 c1 c2 while chunk 0 is computed beside d1, chunk 1 beside d2 or c0. A message
begins when its rank has computed what it sends and the lane is free; each exchange in it starts when the last rank is
there and ends for all when its slowest rank is done. Copies beside an exchange are made in the lane too.

Idealised: what runs beside something else is not slowed by it, whether it shares memory bandwidth or multiprocessors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
class Task:
    """Local work of one stage [R]."""

    stage: str
    duration_us_R: np.ndarray
    bytes_R: np.ndarray
    flops_R: np.ndarray


@dataclass(frozen=True)
class Transfer:
    """One exchange among all ranks: each rank's own time on its links [R], and the time it takes as a whole."""

    stage: str
    own_us_R: np.ndarray
    total_us: float
    bytes_R: np.ndarray


@dataclass(frozen=True)
class Message:
    """What the lane does in one go: copies, exchanges, copies."""

    before: tuple[Task, ...]
    transfers: tuple[Transfer, ...]
    after: tuple[Task, ...] = ()


@dataclass(frozen=True)
class Step:
    """A leg of a part: what is computed, then what is sent."""

    compute: tuple[Task, ...]
    send: Message | None = None


@dataclass(frozen=True)
class Pass:
    """Parts of the tokens in a pipeline, all of the same steps: ``head`` before them, ``beside`` computed once every
    part's first message is on its way, ``tail`` when all are done."""

    head: tuple[Task, ...]
    parts: tuple[tuple[Step, ...], ...]
    beside: tuple[Task, ...] = ()
    tail: tuple[Task, ...] = ()


class Timeline:
    """Where each rank and its lane stand [R]. Without ``overlaps`` every message is waited for at once."""

    def __init__(self, num_ranks: int, *, overlaps: bool) -> None:
        self.overlaps = overlaps
        self.spans: list[Span] = []
        self._main_us_R = np.zeros(num_ranks)
        self._lane_us_R = np.zeros(num_ranks)

    @property
    def latest_us(self) -> float:
        return float(self._main_us_R.max())

    def run(self, passes: Sequence[Pass]) -> None:
        """All passes, each when the one before is done."""
        for one in passes:
            self._compute(one.head)
            self._pipeline(one)
            self._compute(one.tail)

    def _pipeline(self, one: Pass) -> None:
        sent: list[np.ndarray] = []
        for number, steps in enumerate(zip(*one.parts, strict=True)):
            before, sent = sent, []
            for part, step in enumerate(steps):
                if before:
                    self._main_us_R = np.maximum(self._main_us_R, before[part])
                self._compute(step.compute)
                if step.send is not None:
                    sent.append(self._send(step.send))
            if number == 0:
                self._compute(one.beside)
        for end_us_R in sent:
            self._main_us_R = np.maximum(self._main_us_R, end_us_R)

    def _compute(self, tasks: Sequence[Task]) -> None:
        self._main_us_R = self._tasks(tasks, "main", self._main_us_R)

    def _tasks(self, tasks: Sequence[Task], stream: str, now_us_R: np.ndarray) -> np.ndarray:
        for task in tasks:
            self.spans.append(Span(task.stage, stream, now_us_R, task.duration_us_R, task.bytes_R, task.flops_R))
            now_us_R = now_us_R + task.duration_us_R
        return now_us_R

    def _send(self, message: Message) -> np.ndarray:
        """When it is done on each rank."""
        copies = "network" if self.overlaps else "main"
        now_us_R = self._tasks(message.before, copies, np.maximum(self._main_us_R, self._lane_us_R))
        for transfer in message.transfers:
            now_us_R = np.full_like(now_us_R, now_us_R.max())
            own_us_R, zero_R = transfer.own_us_R, np.zeros_like(now_us_R)
            self.spans.append(Span(transfer.stage, "network", now_us_R, own_us_R, transfer.bytes_R, zero_R))
            now_us_R = now_us_R + transfer.total_us
        self._lane_us_R = self._tasks(message.after, copies, now_us_R)
        if not self.overlaps:
            self._main_us_R = self._lane_us_R
        return self._lane_us_R


def latency_us(passes: Sequence[Pass], *, num_ranks: int, overlaps: bool) -> float:
    """Microseconds until the last rank is done."""
    timeline = Timeline(num_ranks, overlaps=overlaps)
    timeline.run(passes)
    return timeline.latest_us


def busy_us(spans: Sequence[Span]) -> np.ndarray:
    """Time in which a rank computes or sends [R]; what runs beside something else counts once."""
    start_SR = np.stack([span.start_us_R for span in spans])
    end_SR = start_SR + np.stack([span.duration_us_R for span in spans])
    order = np.argsort(start_SR, axis=0, kind="stable")
    start_SR, end_SR = np.take_along_axis(start_SR, order, 0), np.take_along_axis(end_SR, order, 0)
    reached_SR = np.maximum.accumulate(end_SR, axis=0)
    before_SR = np.vstack([np.zeros((1, start_SR.shape[1])), reached_SR[:-1]])
    return np.maximum(0.0, end_SR - np.maximum(start_SR, before_SR)).sum(axis=0)
