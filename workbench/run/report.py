"""What one rank hands back of a cell: plain values that travel between processes."""

from dataclasses import dataclass, field
from typing import Literal

PEER_FAILED = "peer_failed"
"""Flag of a report whose rank only stopped because another did."""


@dataclass(frozen=True)
class Leg:
    """A hop by itself, payload alone: its class of link (that between nodes if anything crosses them), this rank's
    microseconds, and the bytes that it sends and receives by class."""

    name: str
    link: Literal["self", "scale_up", "scale_out"]
    us: float
    sent: dict[str, int]
    received: dict[str, int]


@dataclass(frozen=True)
class RankReport:
    """One rank's part of a cell. Times are microseconds; ``stages`` are medians by stage, in order.

    ``samples_us`` are by the clock ``timer``; ``kernel_us`` and ``wall_us`` are the same step by the others, if any.
    ``wire`` counts, for one pass, the bytes this rank sent by link class, and ``physical_bytes`` the payload among them
    that left it; ``logical_bytes`` is what it had to send, None where pairs tell. A rank that could not run has a
    ``status`` other than ok and a ``reason``; everything else is then at its default.
    """

    rank: int
    status: Literal["ok", "unsupported", "infeasible", "error"] = "ok"
    reason: str | None = None
    samples_us: tuple[float, ...] = ()
    first_call_us: float | None = None
    prepare_us: float | None = None
    stages: tuple[tuple[str, float], ...] = ()
    count_exchange_us: float | None = None
    staging_us: float | None = None
    wire: dict[str, int] = field(default_factory=dict)
    logical_bytes: int | None = None
    physical_bytes: int = 0
    legs: tuple[Leg, ...] = ()
    kernel_us: float | None = None
    wall_us: float | None = None
    rel_error: float | None = None
    grad_rel_error: float | None = None
    sqnr_db: float | None = None
    timer: str = "wall"
    graph: bool = False
    math_path: str | None = None
    flops: int = 0
    touched_bytes: int = 0
    activation_bytes: int = 0
    touched_experts: int = 0
    weight_bytes: int = 0
    peak_memory_bytes: int | None = None
    pairs: int = 0
    dropped_tokens: int = 0
    expert_tokens: tuple[tuple[int, int], ...] = ()
    clock_mhz: float | None = None
    watts: float | None = None
    hardware_name: str | None = None
    kernel_version: str | None = None
    hit_rate: float | None = None
    stall_us: float | None = None
    offload_bytes: int | None = None
    flags: tuple[str, ...] = ()
    trace: bytes | None = field(default=None, repr=False)
