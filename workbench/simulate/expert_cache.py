"""Which experts lie in a cache of slots, request by request: the bookkeeping of ``kernels.offload`` without tensors.

The same policies, the same waves and the same order of giving way, so a replay has the hits and copies of a measured
layer with the same routing. A test holds the two together.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

Rank = Callable[[int, int], tuple[int, ...]]
POLICIES: dict[str, tuple[Rank, bool]] = {
    "none": (lambda count, last: (last,), False),
    "lru": (lambda count, last: (last,), True),
    "lfu": (lambda count, last: (count, last), True),
    "pinned": (lambda count, last: (last,), True),
}
"""By policy the rank by which an expert of ``count`` uses, last used at ``last``, gives way (least first), and whether
experts stay from one call to the next."""


@dataclass(frozen=True)
class Fetched:
    """What one request met: experts that lay there, that are copied now, and whose copy was begun before."""

    hits: int
    copied: tuple[int, ...]
    early: tuple[int, ...]


@dataclass
class ExpertSlots:
    """``num_slots`` slots in front of the experts, filled with ``initial`` ones; ``pinned`` ones never give way."""

    num_slots: int
    policy: str
    pinned: frozenset[int] = frozenset()
    initial: Sequence[int] = ()
    resident: set[int] = field(init=False)
    _usage: dict[int, tuple[int, int]] = field(init=False, default_factory=dict)
    _early: set[int] = field(init=False, default_factory=set)
    _clock: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.resident = set(list(dict.fromkeys([*sorted(self.pinned), *self.initial]))[: self.num_slots])

    def waves(self, experts: Sequence[int], *, overlap: bool) -> list[list[int]]:
        """The experts of one call in groups that fit the slots one after the other, residents first."""
        here = [e for e in experts if e in self.resident]
        missing = [e for e in experts if e not in self.resident]
        changing = self.num_slots - len(self.pinned & self.resident)
        if overlap and changing >= 2:
            half = max(1, changing // 2)
            return [*_chunks(here, half), *_chunks(missing, half)]
        room = self.num_slots - len((self.pinned | set(here)) & self.resident)
        first, rest = here + missing[:room], missing[room:]
        return [wave for wave in (first, *_chunks(rest, max(changing, 1))) if wave]

    def fetch(self, experts: Sequence[int]) -> Fetched:
        """The experts made resident."""
        missing = tuple(e for e in experts if e not in self.resident)
        early = tuple(e for e in experts if e in self._early)
        self._copy_in(missing, protect=experts)
        for expert in experts:
            count, _ = self._usage.get(expert, (0, -1))
            self._usage[expert] = (count + 1, self._clock)
            self._clock += 1
        self._early.difference_update(early)
        return Fetched(len(experts) - len(missing) - len(early), missing, early)

    def prefetch(self, experts: Sequence[int], *, using: Sequence[int]) -> tuple[int, ...]:
        """Experts whose copy begins now, as far as there are slots that ``using`` leaves."""
        protect = {*using, *experts}
        room = self.num_slots - len((self.pinned | protect) & self.resident)
        begun = tuple(e for e in experts if e not in self.resident)[:room]
        self._copy_in(begun, protect=protect)
        self._early.update(begun)
        return begun

    def release(self) -> None:
        """The call is over: a policy that keeps nothing forgets all but what was fetched early for the next."""
        if not POLICIES[self.policy][1]:
            self.resident &= self._early

    def _copy_in(self, experts: Sequence[int], *, protect: Collection[int]) -> None:
        kept, rank = self.pinned | set(protect), POLICIES[self.policy][0]
        leaving = sorted(
            (e for e in self.resident if e not in kept), key=lambda e: (*rank(*self._usage.get(e, (0, -1))), e)
        )
        gone = leaving[: max(0, len(self.resident) + len(experts) - self.num_slots)]
        self.resident.difference_update(gone)
        self._early.difference_update(gone)
        self.resident.update(experts)


def ahead_of(later: Sequence[Sequence[int]], slots: ExpertSlots) -> tuple[list[int], list[int]]:
    """Of the waves still to come: the first that lacks an expert, and all residents, which must stay."""
    lacking = next((list(wave) for wave in later if not slots.resident.issuperset(wave)), [])
    return lacking, [e for wave in later for e in wave if e in slots.resident]


def _chunks(experts: Sequence[int], size: int) -> list[list[int]]:
    return [list(experts[start : start + size]) for start in range(0, len(experts), size)]
