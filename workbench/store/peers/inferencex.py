"""Results in InferenceX's form: rows of a serving sweep, times in seconds, throughput for each GPU.

A row is one operating point: part, model, framework, precision, parallelism and concurrency. Figures lie in the row
itself, or under ``metrics``. ``latency_us`` is the median time of an output token.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.spec.record import Outcome
from workbench.store.peers.row import Figures, Told, number, outcome, scaled, whole

METHOD = "inferencex"
US_PER_S = 1e6


def fits(text: str) -> bool:
    return bool(_rows(text))


def read(text: str, path: Path, told: Told) -> list[Outcome]:
    """A cell a row, with throughput for each GPU of all that served it, also where prefill and decode are apart."""
    return [_outcome(row, told) for row in _rows(text)]


def _rows(text: str) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(text)
    except ValueError:
        return []
    if isinstance(found, dict):
        found = next(
            (found[name] for name in ("rows", "results", "data") if isinstance(found.get(name), list)), [found]
        )
    return [row for row in found if _is_row(row)] if isinstance(found, list) else []


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict) or not ("hw" in row or "hardware" in row):
        return False
    return "conc" in row and "tput_per_gpu" in _metrics(row)


def _metrics(row: Mapping[str, Any]) -> Mapping[str, Any]:
    metrics = row.get("metrics")
    return metrics if isinstance(metrics, dict) else row


def _outcome(row: Mapping[str, Any], told: Told) -> Outcome:
    metrics = _metrics(row)
    apart = str(row.get("disagg")).lower() == "true"
    prefill, decode = whole(row.get("num_prefill_gpu")), whole(row.get("num_decode_gpu"))
    gpus = (prefill or 0) + (decode or 0) if apart else whole(row.get("tp")) or whole(row.get("decode_tp"))
    per_gpu = number(metrics["tput_per_gpu"])
    tpot = scaled(_first(metrics, "median_tpot", "mean_tpot"), US_PER_S)
    figures = {
        "latency_us": tpot,
        "tpot_us": tpot,
        "latency_p99_us": scaled(metrics.get("p99_tpot"), US_PER_S),
        "ttft_us": scaled(_first(metrics, "median_ttft", "mean_ttft"), US_PER_S),
        "tokens_per_s_per_gpu": per_gpu,
        "tokens_per_s": per_gpu * gpus if per_gpu and gpus else None,
        "tokens_per_s_per_user": number(_first(metrics, "median_intvty", "mean_intvty")),
        "joules_per_token": number(_first(metrics, "joules_per_total_token", "joules_per_token")),
        "prefill_gpus": prefill if apart else None,
        "decode_gpus": decode if apart else None,
    }
    conditions = {
        "scope": "serving",
        "method": METHOD,
        "kernel": row.get("framework"),
        "kernel_version": row.get("image"),
        "hardware": row.get("hw") or row.get("hardware"),
        "model": row.get("model") or row.get("infmax_model_prefix"),
        "precision": row.get("precision"),
        "num_gpus": gpus or None,
        "tp": whole(_first(row, "tp", "decode_tp")),
        "ep": whole(_first(row, "ep", "decode_ep")),
    }
    found = Figures(figures) if per_gpu else Figures(figures, status="error", reason="the row has no throughput")
    return outcome(conditions, found, told=told, more=_more(row, apart=apart))


def _more(row: Mapping[str, Any], *, apart: bool) -> dict[str, Any]:
    """The rest of what tells operating points apart."""
    names = ("prefill_tp", "prefill_ep", "prefill_num_workers", "decode_num_workers") if apart else ()
    return {
        "concurrency": whole(row.get("conc")),
        "isl": whole(row.get("isl")),
        "osl": whole(row.get("osl")),
        "attention_dp": str(_first(row, "dp_attention", "decode_dp_attention")).lower() == "true",
        "speculative": str(_first(row, "spec_decoding", "spec_method", "mtp") or "none"),
        "separate_pools": apart,
        **{name: whole(row.get(name)) for name in names},
    }


def _first(row: Mapping[str, Any], *names: str) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)
