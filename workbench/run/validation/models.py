"""Whole-model estimates against serving rates that others published. Nothing here is fitted to any of them.

Two sources: rates of phases and fleets as announced (``ANCHORS``, with what had to be assumed to price them), and the
aggregated rows of InferenceX that aiconfigurator-core 0.12.0 carries, by time per output token.
"""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from workbench.run.simulated import run_simulated
from workbench.run.validation.lines import line
from workbench.simulate.published import published
from workbench.spec.raw import overlay
from workbench.spec.scenario import Cell
from workbench.spec.standalone import one_cell
from workbench.spec.validation import ValidationRow

WIDE = {"dispatch_dtype": "fp8_block", "overlap": "two_batch"}
SPREAD = {"placement": {"kind": "eplb", "redundant_experts": 32}}
SKEW = {"kind": "power_law", "alpha": 1.01}
NAMES = {"DeepSeek-R1": "deepseek-r1", "gpt-oss-120b": "gpt-oss-120b", "Qwen3-235B-A22B-FP8": "qwen3-235b-a22b"}
PARTS = {"h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200-sxm"}
RECIPES = {"fp8": "fp8_block", "bf16": "bf16", "fp4": "nvfp4"}
MOST_GPUS = 8
ASSUMED = (
    "rates as announced; nothing is fitted to them. Assumed where the source is silent: batch and prompt length as in "
    "`ANCHORS`, 32 redundant experts by eplb, a power law over experts, two-batch overlap, attention and dense "
    "parts at the speed of light"
)
SERVED = (
    "time per output token of one pool of at most 8 GPUs at the row's concurrency; nothing is fitted to these rows. "
    "Engines schedule prompts in ways of their own and add up small messages faster than NCCL, whose curve is used; "
    "whether tokens were speculated is not in the table"
)


@dataclass(frozen=True)
class Anchor:
    """A published rate in tokens a second of one GPU, and the block that prices it."""

    name: str
    hardware: str
    dtype: str
    tokens_per_s_per_gpu: float
    block: dict[str, Any] = field(hash=False)


def _anchor(
    name: str, hardware: str, rate: float, *, gpus: int, per_node: int = 8, phase: str, tokens: int, isl: int,
    precision: str = "fp8_block", **more: Any,
) -> Anchor:  # fmt: skip
    """``isl`` is the context in decode."""
    per = min(per_node, gpus)
    length = {"isl": isl} if phase == "prefill" else {"context_tokens": isl}
    strategy = "node_dedup" if phase == "prefill" else "low_latency"
    block = {
        "model": "deepseek-v3", "scope": "model", "precision": precision,
        "cluster": {"hardware": hardware, "nodes": gpus // per, "gpus_per_node": per},
        "workload": {"phase": phase, "tokens_per_rank": tokens, "skew": SKEW, **length},
        "dispatch": {"strategy": strategy, **WIDE}, "balance": SPREAD,
    }  # fmt: skip
    return Anchor(name, hardware, precision, rate, overlay(block, more))


_GB200 = {"per_node": 48, "gpus": 48, "phase": "decode", "isl": 2048}
ANCHORS = (
    _anchor("DeepSeek, prefill EP32, without its 56.3% cache hits", "h800-sxm", 73_700 * 0.437 / 8, gpus=32,
            phase="prefill", tokens=8192, isl=4096),
    _anchor("DeepSeek, decode EP144", "h800-sxm", 14_800 / 8, gpus=144, phase="decode", tokens=96, isl=4989),
    _anchor("SGLang, prefill EP32", "h100-sxm", 52_300 / 8, gpus=32, phase="prefill", tokens=8192, isl=2000),
    _anchor("SGLang, decode EP72", "h100-sxm", 22_300 / 8, gpus=72, phase="decode", tokens=256, isl=2050),
    _anchor("SGLang, prefill TP8", "h20", 16_500 / 8, gpus=8, phase="prefill", tokens=8192, isl=4096,
            parallel={"ep": 1, "tp": 8, "attn_tp": 8}, dispatch={"strategy": "none", "overlap": "none"},
            balance={"placement": {"kind": "linear", "redundant_experts": 0}}),
    _anchor("SGLang, decode EP16, without its 1.9 accepted tokens a step", "h20", 5_700 / 8 / 1.9, gpus=16,
            phase="decode", tokens=32, isl=4096, dispatch={"overlap": "none"}),
    _anchor("SGLang, decode 48 GPUs", "gb200-nvl72", 9_087, tokens=768, **_GB200),
    _anchor("SGLang, decode 48 GPUs, NVFP4 experts", "gb200-nvl72", 13_386, tokens=1000, precision="nvfp4", **_GB200),
    _anchor("SGLang, prefill 8 GPUs", "gb200-nvl72", 18_471, gpus=8, phase="prefill", tokens=16_384, isl=2000),
    _anchor("SGLang, prefill 8 GPUs, NVFP4 experts", "gb200-nvl72", 26_156, gpus=8, phase="prefill", tokens=16_384,
            isl=2000, precision="nvfp4"),
)  # fmt: skip


def models_section() -> list[ValidationRow]:
    """A line for all announced rates and one for each, then lines on the serving rows."""
    fields = {"section": "models", "method": "best+roofline"}
    anchors = pd.DataFrame([_priced(anchor) for anchor in ANCHORS])
    lines = [line(anchors, split="announced rates", held_out=ASSUMED, points=True, **fields)]
    for anchor, (_, row) in zip(ANCHORS, anchors.iterrows(), strict=True):
        told = {"split": anchor.name, "hardware": anchor.hardware, "dtype": anchor.dtype, "held_out": ASSUMED}
        lines.append(line(row.to_frame().T, **told, **fields))
    served = served_rows()
    told = {"split": "InferenceX, time per output token", "held_out": SERVED}
    lines.append(line(served, points=True, **told, **fields))
    for (hardware, model), rows in served.groupby(["hardware", "model"]):
        lines.append(line(rows, hardware=hardware, **told | {"split": f"{model}, time per output token"}, **fields))
    return lines


def _priced(anchor: Anchor) -> dict[str, Any]:
    """Microseconds of a GPU for each token, as announced and as priced."""
    record = run_simulated(one_cell(anchor.block)).record
    rate = record.tokens_per_s_per_gpu
    if rate is None:
        raise ValueError(f"{anchor.name}: {record.status}: {record.reason}")
    return {
        "hardware": anchor.hardware, "kernel": record.kernel, "dtype": anchor.dtype, "tokens": record.tokens_per_rank,
        "us": 1e6 / anchor.tokens_per_s_per_gpu, "predicted_us": 1e6 / rate,
    }  # fmt: skip


def served_rows() -> pd.DataFrame:
    """One row for every point of the aggregated serving table that can be priced, with its prediction."""
    table = published("e2e_serving")
    keys = ["model", "hardware", "precision", "backend", "isl", "osl", "concurrency", "tp", "moe_tp", "moe_ep"]
    same_gpus = (table["tp"] * table["dp_attn"]).eq(table["moe_tp"] * table["moe_ep"])
    kept = table["mode"].eq("agg") & table["model"].isin(NAMES) & table["hardware"].isin(PARTS) & same_gpus
    kept &= table["dp_attn"].eq(1) & table["tp"].le(MOST_GPUS) & table["tpot_ms"].gt(0)
    kept &= table["concurrency"].ge(table["moe_ep"]) & table["precision"].isin(RECIPES)
    points = table[kept].groupby(keys, as_index=False)["tpot_ms"].median()
    rows = []
    for point in points.to_dict("records"):
        record = run_simulated(_served_cell(point)).record
        if record.status == "ok":
            rows.append({
                "model": NAMES[point["model"]], "hardware": PARTS[point["hardware"]], "kernel": record.kernel,
                "dtype": record.precision, "tokens": int(point["concurrency"]), "us": point["tpot_ms"] * 1e3,
                "predicted_us": record.tpot_us,
            })  # fmt: skip
    return pd.DataFrame(rows)


def _served_cell(point: dict[str, Any]) -> Cell:
    ep, tp, attn_tp = (int(point[name]) for name in ("moe_ep", "moe_tp", "tp"))
    precision = RECIPES[point["precision"]]
    if point["model"] == "gpt-oss-120b":
        # On Blackwell TensorRT-LLM encodes this model's activations in MXFP8.
        precision = "mxfp4_w4a8" if (point["backend"], point["hardware"]) == ("trtllm", "b200_sxm") else "mxfp4_w4a16"
    return one_cell({
        "model": NAMES[point["model"]], "scope": "model", "precision": precision, "kernel": point["backend"],
        "cluster": {"hardware": PARTS[point["hardware"]], "gpus_per_node": ep * tp},
        "parallel": {"ep": ep, "tp": tp, "attn_tp": attn_tp},
        "dispatch": {"strategy": "allgather_reduce_scatter" if ep > 1 else "none"},
        "workload": {
            "phase": "decode", "tokens_per_rank": round(point["concurrency"] / ep), "isl": int(point["isl"]),
            "osl": int(point["osl"]),
        },
    })  # fmt: skip
