"""What a cell ends as: one record for every engine, and the tables beside it.

Times are microseconds, sizes bytes, bandwidths GB/s (10^9), and a missing figure is None.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Status = Literal["ok", "unsupported", "infeasible", "error"]


@dataclass(frozen=True, kw_only=True)
class Record:
    """A row of ``cells``. ``latency_us`` is the median over iterations of the slowest rank, by the clock ``timer``.

    ``kernel_us``, ``event_us`` and ``wall_us`` are the same step by every clock that was read. ``scale_up_us`` and
    ``scale_out_us`` are hops by themselves, payload alone: those inside nodes, and those that cross them.
    """

    run_id: str | None = None
    cell_id: str
    scenario: str | None = None
    group: str | None = None
    status: Status
    reason: str | None = None
    engine: str
    method: str | None = None
    kernel: str | None = None
    kernel_version: str | None = None
    error_band_pct: float | None = None
    band_low_us: float | None = None
    band_high_us: float | None = None
    model: str | None = None
    scope: str | None = None
    hardware: str | None = None
    device: str | None = None
    num_gpus: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    ep: int | None = None
    tp: int | None = None
    dp: int | None = None
    pp: int | None = None
    phase: str | None = None
    tokens_per_rank: int | None = None
    router: str | None = None
    skew: str | None = None
    data: str | None = None
    precision: str | None = None
    scale_rule: str | None = None
    math_path: str | None = None
    strategy: str | None = None
    dispatch_dtype: str | None = None
    combine_dtype: str | None = None
    overlap: str | None = None
    overlap_degree: int | None = None
    bytes_per_rank: int | None = None
    placement: str | None = None
    redundant_experts: int | None = None
    training_balance: str | None = None
    latency_us: float | None = None
    latency_p50_us: float | None = None
    latency_p95_us: float | None = None
    latency_p99_us: float | None = None
    latency_ci_low_us: float | None = None
    latency_ci_high_us: float | None = None
    rank_min_us: float | None = None
    rank_max_us: float | None = None
    timer: str | None = None
    kernel_us: float | None = None
    event_us: float | None = None
    wall_us: float | None = None
    graph: bool | None = None
    cache: str | None = None
    num_samples: int | None = None
    first_call_us: float | None = None
    tokens_per_s: float | None = None
    tflops: float | None = None
    hbm_gb_per_s: float | None = None
    roofline_fraction: float | None = None
    bound_by: str | None = None
    comm_fraction: float | None = None
    compute_us: float | None = None
    dispatch_us: float | None = None
    combine_us: float | None = None
    quantise_us: float | None = None
    count_exchange_us: float | None = None
    staging_us: float | None = None
    logical_bytes: int | None = None
    physical_bytes: int | None = None
    wire_bytes: int | None = None
    scale_up_bytes: int | None = None
    scale_out_bytes: int | None = None
    scale_up_us: float | None = None
    scale_out_us: float | None = None
    algbw_gb_per_s: float | None = None
    busbw_gb_per_s: float | None = None
    rel_error: float | None = None
    grad_rel_error: float | None = None
    sqnr_db: float | None = None
    prepare_us: float | None = None
    ttft_us: float | None = None
    tpot_us: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tokens_per_s_per_user: float | None = None
    prefill_gpus: int | None = None
    decode_gpus: int | None = None
    weight_bytes: int | None = None
    peak_memory_bytes: int | None = None
    fits: bool | None = None
    shortage_bytes: int | None = None
    load_max_over_mean: float | None = None
    dropped_tokens: int | None = None
    touched_experts: int | None = None
    hit_rate: float | None = None
    stall_us: float | None = None
    offload_bytes: int | None = None
    joules_per_token: float | None = None
    power_source: str | None = None
    usd_per_million_tokens: float | None = None
    clock_mhz: float | None = None
    flags: str | None = None
    seed: int | None = None
    cell_json: str | None = None


TABLE_COLUMNS: dict[str, dict[str, type]] = {
    "stages": {"cell_id": str, "rank": int, "stream": str, "stage": str, "start_us": float, "duration_us": float,
               "bytes": int, "flops": int},
    "links": {"cell_id": str, "link": str, "bytes": int, "busy_us": float},
    "loads": {"cell_id": str, "layer": int, "step": int, "kind": str, "index": int, "tokens": int},
    "memory": {"cell_id": str, "rank": int, "what": str, "bytes": int},
    "samples": {"cell_id": str, "rank": int, "iteration": int, "repeat": int, "us": float},
}  # fmt: skip
"""Columns and types of the tables beside ``cells``; ``loads.kind`` is ``expert`` or ``rank``."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished cell: its record and the rows of the other tables by table name (all keys of TABLE_COLUMNS)."""

    record: Record
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)


COLUMNS: tuple[str, ...] = tuple(f.name for f in fields(Record))
