"""Experts kept in host memory, with a cache of slots on the device: which give way, what is copied, how long it waits.

E experts, S slots. ``kernels.offloaded_layer`` computes a layer over such a cache. On a GPU the host's copy is pinned
and a second stream copies; on a CPU host and device are two copies in one memory and nothing runs beside, so that a
prefetch costs its time. An expert is a *hit* when a layer asks for it and it lies in a slot without a copy made for
this request. A prefetched expert is a miss whose wait may be hidden: prefetching changes ``stall_us``, never the
meaning of the hit rate.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.expert_copy import ExpertCopies
from kernels.expert_parts import map_parts, parts_of
from kernels.moe import ExpertWeights


@dataclass
class Usage:
    """How often an expert was asked for, and when last (a count of requests)."""

    count: int = 0
    last: int = -1


@dataclass(frozen=True)
class Policy:
    """Which expert gives way: the one of least ``rank``. ``keeps``: experts stay from one layer call to the next."""

    rank: Callable[[Usage], tuple[int, ...]]
    keeps: bool = True
    pins: bool = False


POLICIES: dict[str, Policy] = {
    "none": Policy(lambda usage: (usage.last,), keeps=False),
    "lru": Policy(lambda usage: (usage.last,)),
    "lfu": Policy(lambda usage: (usage.count, usage.last)),
    "pinned": Policy(lambda usage: (usage.last,), pins=True),
}
"""``none``: nothing outlives a layer call. ``lru``: least recently used. ``lfu``: least often used, then least
recently. ``pinned``: the experts named at the start stay, the others share what is left by ``lru``."""


@dataclass
class Counters:
    """What happened since the start: ``stalls`` are pairs of CUDA events around each wait, ``wall_us`` the CPU's."""

    hits: int = 0
    misses: int = 0
    copied_bytes: int = 0
    wall_us: float = 0.0
    stalls: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)

    @property
    def hit_rate(self) -> float | None:
        asked = self.hits + self.misses
        return self.hits / asked if asked else None

    def stall_us(self) -> float:
        """Time that the layer waited for copies; on a GPU waits for the device."""
        if self.stalls:
            self.stalls[-1][1].synchronize()
        return self.wall_us + sum(before.elapsed_time(after) for before, after in self.stalls) * 1e3


class ExpertCache:
    """Slots on ``device`` for some of the experts of ``host``, filled with ``initial`` ones.

    ``pinned`` experts stay, for the policy that pins; at least one slot must be left beside them unless every expert
    has one. ``weights`` are the slots as a layer's experts, S of them. Raises ValueError for numbers that cannot be.
    """

    def __init__(
        self,
        host: ExpertWeights,
        *,
        num_slots: int,
        device: torch.device,
        policy: str = "lru",
        pinned: Collection[int] = (),
        initial: Sequence[int] = (),
    ):
        if policy not in POLICIES:
            raise ValueError(f"cache: {policy!r} is unknown; known: {', '.join(POLICIES)}")
        if not 1 <= num_slots <= host.num_experts:
            raise ValueError(f"num_slots: {num_slots}; want 1 to {host.num_experts}, the number of experts")
        self.policy, self.device = POLICIES[policy], device
        self.pinned = frozenset(pinned) if self.policy.pins else frozenset()
        if len(self.pinned) >= num_slots and num_slots < host.num_experts:
            raise ValueError(f"pinned: {len(self.pinned)} experts leave none of {num_slots} slots to the others")
        # As the kernels read them: packed at each copy, or not at all, a layer would go through torch.
        host = host.packed() if device.type == "cuda" else host
        self._host_parts = parts_of(host)
        self.weights = map_parts(host, lambda part: part.new_empty((num_slots, *part.shape[1:]), device=device))
        self._copies = ExpertCopies(self._host_parts, parts_of(self.weights))
        self.expert_bytes = sum(part[0].nbytes for part in self._host_parts)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._initial = tuple(initial)
        self._slot_of: dict[int, int] = {}
        self.reset()

    @property
    def num_slots(self) -> int:
        return self.weights.num_experts

    @property
    def resident(self) -> frozenset[int]:
        """Experts that lie in a slot, or are on their way to one."""
        return frozenset(self._slot_of)

    def reset(self) -> None:
        """Back to the state at the start, counters too: ``initial`` in their slots, nothing else, nothing used yet."""
        kept = list(dict.fromkeys([*sorted(self.pinned), *self._initial]))[: self.num_slots]
        self._slot_of = {e: slot for e, slot in self._slot_of.items() if e in kept}
        self._usage: dict[int, Usage] = {}
        self._clock = 0
        self._fetched_early: set[int] = set()
        self._arrival: torch.cuda.Event | None = None
        self.counters = Counters()
        self._copy_in([e for e in kept if e not in self._slot_of], protect=kept)
        self._wait(self._mark())
        self.counters = Counters()

    def fetch(self, experts: Sequence[int]) -> Tensor:
        """Make the experts resident and wait for them: int32 [E] on the device, an expert's slot or -1 if not asked.

        Raises ValueError for more experts than the slots can hold at once.
        """
        missing = [e for e in experts if e not in self._slot_of]
        early = [e for e in experts if e in self._fetched_early]
        # Before the copies are given to the device, which takes the host a good part of the time that they run.
        asked = self._mark() if missing or early else None
        self._copy_in(missing, protect=experts)
        self.counters.misses += len(missing) + len(early)
        self.counters.hits += len(experts) - len(missing) - len(early)
        for expert in experts:
            usage = self._usage.setdefault(expert, Usage())
            usage.count, usage.last, self._clock = usage.count + 1, self._clock, self._clock + 1
        if missing or early:
            self._wait(asked)
        self._fetched_early.difference_update(early)
        slots = [-1] * self._host_parts[0].shape[0]
        for expert in experts:
            slots[expert] = self._slot_of[expert]
        return torch.tensor(slots, dtype=torch.int32, device=self.device)

    def prefetch(self, experts: Sequence[int], *, using: Sequence[int]) -> None:
        """Start copying experts that will be asked for next, as far as there are slots not in use by ``using``.

        To be called after ``fetch(using)`` and before the work on it is given to the device.
        """
        missing = [e for e in experts if e not in self._slot_of]
        room = self._room(protect=[*using, *experts])
        self._copy_in(missing[:room], protect=[*using, *experts])
        self._fetched_early.update(missing[:room])

    def release(self) -> None:
        """The layer call is over: a policy that keeps nothing forgets all but what was fetched early for the next."""
        if not self.policy.keeps:
            self._slot_of = {e: slot for e, slot in self._slot_of.items() if e in self._fetched_early}

    def waves(self, experts: Sequence[int], *, overlap: bool) -> list[list[int]]:
        """The experts of one call in groups that fit the slots one after the other, residents first.

        With ``overlap`` a group takes at most half of the slots that can change hands, so that the next can be copied
        while it is computed.
        """
        here = [e for e in experts if e in self._slot_of]
        missing = [e for e in experts if e not in self._slot_of]
        changing = self.num_slots - len(self.pinned & self._slot_of.keys())
        if not overlap or changing < 2:
            room = self._room(protect=here)
            first, rest = here + missing[:room], missing[room:]
            return [wave for wave in (first, *_chunks(rest, max(changing, 1))) if wave]
        half = max(1, changing // 2)
        return [*_chunks(here, half), *_chunks(missing, half)]

    def _room(self, *, protect: Collection[int]) -> int:
        """Slots that are free or whose expert may give way."""
        return self.num_slots - len((self.pinned | set(protect)) & self._slot_of.keys())

    def _copy_in(self, experts: Sequence[int], *, protect: Collection[int]) -> None:
        if not experts:
            return
        places = list(self._claim(experts, protect=protect))
        self.counters.copied_bytes += len(experts) * self.expert_bytes
        start = time.perf_counter()
        if self._stream is not None:  # what is already given to the device may still read the slots
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            for expert, slot in places:
                self._copies.copy(expert, slot)
        if self._stream is None:
            self.counters.wall_us += (time.perf_counter() - start) * 1e6
        else:
            self._arrival = self._stream.record_event()

    def _claim(self, experts: Sequence[int], *, protect: Collection[int]) -> Iterator[tuple[int, int]]:
        """(expert, its new slot): free slots first, then those of the experts that the policy ranks lowest."""
        kept = self.pinned | set(protect)
        free = sorted(set(range(self.num_slots)) - set(self._slot_of.values()))
        leaving = sorted(
            (e for e in self._slot_of if e not in kept),
            key=lambda e: (*self.policy.rank(self._usage.get(e, Usage())), e),
        )
        if len(experts) > len(free) + len(leaving):
            held = self.num_slots - len(free) - len(leaving)
            raise ValueError(f"experts: {len(experts)} more do not fit {self.num_slots} slots, {held} of them in use")
        for expert in experts:
            if free:
                slot = free.pop(0)
            else:
                gone = leaving.pop(0)
                slot = self._slot_of.pop(gone)
                self._fetched_early.discard(gone)
            self._slot_of[expert] = slot
            yield expert, slot

    def _mark(self) -> torch.cuda.Event | None:
        """The present place in the stream of the layer's work, with its time; None on a CPU."""
        if self._stream is None:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _wait(self, since: torch.cuda.Event | None) -> None:
        """Let the current stream wait for the copies, and note how long that is after ``since``."""
        if self._arrival is None or since is None:
            return
        torch.cuda.current_stream(self.device).wait_event(self._arrival)
        arrived = self._mark()
        assert arrived is not None
        self.counters.stalls.append((since, arrived))


def _chunks(experts: Sequence[int], size: int) -> list[list[int]]:
    return [list(experts[start : start + size]) for start in range(0, len(experts), size)]
