"""Tokens a second and what a million of them costs, in money and in energy, by one formula for every engine."""

from typing import Any

from workbench.spec.scenario import Cell
from workbench.workload.sources import source_tokens

SECONDS_PER_HOUR = 3600
MEASURED, RATING = "measured", "rating"


def throughput_fields(cell: Cell, *, latency_us: float, measured_watts: float | None = None) -> dict[str, Any]:
    """Of a group whose step takes ``latency_us``: tokens of all ranks, of one GPU. Nothing without tokens or time.

    ``measured_watts`` is the power of one GPU while it was sampled; without it the part's rating stands in.
    """
    tokens, tp, usd = float(source_tokens(cell).mean()), cell.parallel.tp, cell.cluster.usd_per_gpu_hour
    if not tokens or not latency_us:
        return {}
    per_gpu = tokens / latency_us * 1e6 / tp
    source = RATING if measured_watts is None else MEASURED
    watts = cell.cluster.hardware.rated_watts if measured_watts is None else measured_watts
    return {
        "tokens_per_s": per_gpu * cell.ep * tp,
        "tokens_per_s_per_gpu": per_gpu,
        **cost_fields(per_gpu, usd_per_hour=usd, watts=watts, power_source=source),
    }


def cost_fields(
    tokens_per_s: float, *, usd_per_hour: float | None, watts: float | None, power_source: str = RATING
) -> dict[str, Any]:
    """Dollars a million tokens and joules a token of GPUs that together cost and draw so much; without host, network
    and cooling. ``power_source`` says whether the power was measured or is the parts' rating, the most they may draw.
    """
    if not tokens_per_s:
        return {}
    joules = watts / tokens_per_s if watts else None
    return {
        "usd_per_million_tokens": usd_per_hour / SECONDS_PER_HOUR / tokens_per_s * 1e6 if usd_per_hour else None,
        "joules_per_token": joules,
        "power_source": power_source if joules else None,
    }
