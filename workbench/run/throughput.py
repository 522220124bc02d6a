"""Tokens a second and what a million of them costs, by one formula for every engine."""

from typing import Any

from workbench.spec.scenario import Cell
from workbench.workload.sources import source_tokens

SECONDS_PER_HOUR = 3600


def throughput_fields(cell: Cell, *, latency_us: float) -> dict[str, Any]:
    """Of a group whose step takes ``latency_us``: tokens of all ranks, of one GPU. Nothing without tokens or time."""
    tokens, tp, usd = float(source_tokens(cell).mean()), cell.parallel.tp, cell.cluster.usd_per_gpu_hour
    if not tokens or not latency_us:
        return {}
    per_gpu = tokens / latency_us * 1e6 / tp
    return {
        "tokens_per_s": per_gpu * cell.ep * tp,
        "tokens_per_s_per_gpu": per_gpu,
        "usd_per_million_tokens": usd / SECONDS_PER_HOUR / per_gpu * 1e6 if usd else None,
    }
