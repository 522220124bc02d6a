"""What vLLM's benchmarks write: serving, latency of a batch, and throughput, a JSON object each.

They do not say what they ran on; ``--set hardware=h200-sxm`` and the like tell it. ``latency_us`` of a serving result
is the median time of an output token, of a latency result the median of its iterations.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from workbench.spec.record import Outcome
from workbench.store.peers.row import Figures, Told, number, outcome, scaled, whole

US_PER_MS, US_PER_S = 1e3, 1e6
KERNEL = "vllm"


def fits(text: str) -> bool:
    return any(_kind(result) for result in _results(text))


def read(text: str, path: Path, told: Told) -> list[Outcome]:
    """A cell for each result of the file, an object or a list or lines of them."""
    readers = {"serving": _serving, "latency": _latency, "throughput": _throughput}
    return [readers[_kind(result)](result, told) for result in _results(text) if _kind(result)]


def _results(text: str) -> list[Mapping[str, Any]]:
    """The objects of a JSON text, or of its lines: the serving benchmark can append."""
    try:
        found = json.loads(text)
    except ValueError:
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            return []
    return [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)]


def _kind(result: Mapping[str, Any]) -> str:
    if "output_throughput" in result and "completed" in result:
        return "serving"
    if "avg_latency" in result and "latencies" in result:
        return "latency"
    return "throughput" if "elapsed_time" in result and "tokens_per_second" in result else ""


def _serving(result: Mapping[str, Any], told: Told) -> Outcome:
    tpot = scaled(result.get("median_tpot_ms"), US_PER_MS)
    total = number(result.get("total_token_throughput"))
    gpus = _gpus(result, told)
    figures = {
        "latency_us": tpot,
        "tpot_us": tpot,
        "latency_p99_us": scaled(result.get("p99_tpot_ms"), US_PER_MS),
        "ttft_us": scaled(result.get("median_ttft_ms"), US_PER_MS),
        "tokens_per_s": total,
        "tokens_per_s_per_gpu": total / gpus if total and gpus else None,
        "tokens_per_s_per_user": US_PER_S / tpot if tpot else None,
        "num_samples": whole(result.get("completed")),
    }
    failed = whole(result.get("failed")) or 0
    done = whole(result.get("completed")) or 0
    status = "ok" if done else "error"
    reason = f"{failed} of {failed + done} requests failed" if failed or not done else None
    more = {
        "requests": whole(result.get("num_prompts")),
        "request_rate": str(result.get("request_rate")),
        "concurrency": whole(result.get("max_concurrency")),
        "isl": _mean(result.get("total_input_tokens"), done),
        "osl": _mean(result.get("total_output_tokens"), done),
    }
    found = Figures(record=figures, status=status, reason=reason)
    return outcome(_conditions(result, "serve", "serving"), found, told=told, more=more)


def _latency(result: Mapping[str, Any], told: Told) -> Outcome:
    samples = [each * US_PER_S for each in map(number, result["latencies"]) if each is not None]
    if not samples:
        return outcome(_conditions(result, "latency", "batch"), Figures({}, status="error", reason="no iterations"),
                       told=told, more={})  # fmt: skip
    figures = {
        "latency_us": median(samples),
        "latency_p50_us": median(samples),
        "num_samples": len(samples),
        "timer": "wall",
    }
    return outcome(_conditions(result, "latency", "batch"), Figures(figures, samples), told=told, more=_lengths(result))


def _throughput(result: Mapping[str, Any], told: Told) -> Outcome:
    rate, gpus = number(result["tokens_per_second"]), _gpus(result, told)
    figures = {
        "latency_us": scaled(result["elapsed_time"], US_PER_S),
        "tokens_per_s": rate,
        "tokens_per_s_per_gpu": rate / gpus if rate and gpus else None,
        "timer": "wall",
    }
    more = _lengths(result) | {"requests": whole(result.get("num_requests"))}
    return outcome(_conditions(result, "throughput", "offline"), Figures(figures), told=told, more=more)


def _conditions(result: Mapping[str, Any], tool: str, scope: str) -> dict[str, Any]:
    return {
        "scope": scope,
        "method": f"vllm-bench-{tool}",
        "kernel": str(result.get("backend") or result.get("endpoint_type") or KERNEL),
        "kernel_version": result.get("vllm_version"),
        "model": result.get("model_id") or result.get("model"),
        "tp": whole(result.get("tensor_parallel_size")),
    }


def _gpus(result: Mapping[str, Any], told: Told) -> int | None:
    return whole(told.get("num_gpus")) or whole(result.get("num_gpus")) or whole(result.get("tensor_parallel_size"))


def _lengths(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: whole(result.get(name)) for name in ("input_len", "output_len", "batch_size") if name in result}


def _mean(total: Any, count: int) -> int | None:
    found = number(total)
    return round(found / count) if found is not None and count else None
