"""A rank's stages with its messages beside its computation: chunks of tokens in a pipeline over one lane.

Every part (a chunk of the tokens, or a micro-batch) is a list of stages; those named ``dispatch`` or ``combine`` (and
their ``.backward``) go to the lane, the others stay with the caller. Parts advance in turn, one leg at a time, so with
three chunks the lane sends d0 d1 d2 c0 c1 c2 and the caller computes chunk 0 while d1 travels, chunk 1 while d2 or c0
does. That order rests on the number of parts alone, so it is the same on all ranks whatever each has to compute, and
no dispatch waits behind a combine whose experts have not run yet.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.profiler import record_function

Stage = tuple[str, Callable[[], None]]
COMMUNICATION = ("dispatch", "combine")


class LaneStopped(RuntimeError):
    """A message was not sent because one before it failed; ``__cause__`` is that failure."""


class Lane:
    """All collectives of the process while a pipeline runs: one at a time, in the order in which they were handed in.

    A thread of its own on any device, because receiving counts makes the host wait; on a GPU also a stream of its own,
    tied to the caller's by events. Tensors that a message reads or makes must outlive the pass: neither stream is told
    of the other's. After a failure nothing more is sent.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="messages")
        self._fault: BaseException | None = None

    def submit(self, call: Callable[[], None]) -> "Future[torch.cuda.Event | None]":
        """Run ``call`` once everything before it has been sent and the caller's work up to here is done."""
        ready = None if self._stream is None else torch.cuda.current_stream(self._device).record_event()
        return self._thread.submit(self._send, call, ready)

    def wait(self, sent: "Future[torch.cuda.Event | None]") -> None:
        """The caller's next work comes after this message; raises what went wrong with it."""
        done = sent.result()
        if done is not None:
            torch.cuda.current_stream(self._device).wait_event(done)

    def _send(self, call: Callable[[], None], ready: torch.cuda.Event | None) -> torch.cuda.Event | None:
        if self._fault is not None:
            raise LaneStopped("an earlier message of this rank failed") from self._fault
        try:
            with self._on_stream(ready):
                call()
                return None if self._stream is None else self._stream.record_event()
        except BaseException as fault:
            self._fault = fault
            raise

    @contextmanager
    def _on_stream(self, ready: torch.cuda.Event | None) -> Iterator[None]:
        if self._stream is None or ready is None:
            yield
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            yield


@dataclass(frozen=True)
class Leg:
    """What a part computes, then what it sends."""

    compute: tuple[Stage, ...]
    send: tuple[Stage, ...]


def travels(name: str) -> bool:
    """Whether a stage of this name sends messages."""
    return name.split(".")[0] in COMMUNICATION


def legs_of(stages: Sequence[Stage]) -> tuple[Leg, ...]:
    """Stages in the order of execution, cut behind each message; the last leg sends nothing.

    quantise, dispatch, gemm1, combine, finish gives (quantise; dispatch), (gemm1; combine), (finish; nothing).
    """
    legs, compute = [], []
    for stage in stages:
        if travels(stage[0]):
            legs.append(Leg(tuple(compute), (stage,)))
            compute = []
        else:
            compute.append(stage)
    return (*legs, Leg(tuple(compute), ()))


def in_turn(parts: Sequence[Sequence[Stage]], *, beside: Sequence[Stage] = ()) -> list[Stage]:
    """The pipeline's stages in its order, for one thread: nothing overlaps, and the results are the same."""
    order: list[Stage] = []
    for number, legs in enumerate(zip(*map(legs_of, parts), strict=True)):
        for leg in legs:
            order += [*leg.compute, *leg.send]
        order += beside if number == 0 else ()
    return order


def overlapped(
    parts: Sequence[Sequence[Stage]], lane: Lane, *, beside: Sequence[Stage] = (), spans: bool = False
) -> None:
    """Run the parts, each computing while others travel; all must have the same legs.

    ``beside`` is computed once every part's first message is on its way. ``spans``: each stage under its name in a
    profiler's trace. Whatever is raised, here or in the lane, comes
    out after the lane has come to rest, so that nobody else's collectives get between this rank's.
    """
    run = _run_named if spans else run_stages
    before: list[Future] = []
    sent: list[Future] = []
    try:
        for number, legs in enumerate(zip(*map(legs_of, parts), strict=True)):
            before, sent = sent, []
            for part, leg in enumerate(legs):
                if before:
                    lane.wait(before[part])
                run(leg.compute)
                if leg.send:
                    sent.append(lane.submit(lambda leg=leg: run(leg.send)))
            if number == 0:
                run(beside)
    except BaseException:
        wait([*before, *sent])
        raise


def run_stages(stages: Sequence[Stage]) -> None:
    """One after the other."""
    for _, call in stages:
        call()


def _run_named(stages: Sequence[Stage]) -> None:
    for name, call in stages:
        with record_function(name):
            call()
