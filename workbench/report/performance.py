"""The page that sets our kernels beside their peers on one H200, made from a recorded run of ``kernels-h200``.

``h200_peers.parquet`` holds what peers took for the same layers on the same part (2026-12-01, torch 2.11, triton 3.6.0,
CUDA graphs, warm cache, uniform top-k, without the router), with the physical limit of each row.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.report.units import number_text

PEERS = Path(__file__).with_name("h200_peers.parquet")
LAYER = ["model", "precision", "tokens"]
GOALS = {"bf16": (0.97, 1.0, None), "fp8_block": (0.97, 1.0, None), "mxfp4_w4a16": (1.0, 1.0, 1.3)}
"""Precision -> least best peer / ours at up to FEW tokens, above it, and geometric mean over the rows."""
FEW = 256
READ_GB_PER_S, CUBLAS_TFLOPS = 4350.0, (1287.0, 790.0)
"""Reached by reads and by cuBLAS on that part; FP8 and BF16."""


def performance_rows(cells: pd.DataFrame) -> pd.DataFrame:
    """One row a layer that peers were timed on and ``cells`` has: ms of ours and of the best peer.

    ``peer_ms`` is as if the peer had touched as many experts as ours did, for its routing was another draw;
    ``peer_ratio`` is that over ours, above 1 where ours is faster; ``limit_ratio`` the limit of our own bytes and FLOPs
    over ours; ``inside`` the best other kernel of the same run, in ms.
    """
    peers = _same_touched(pd.read_parquet(PEERS), cells)
    best = peers.loc[peers.groupby(LAYER)["peer_ms"].idxmin()]
    ok = _layers(cells)
    ours = ok[ok["kernel"].eq("ours")].drop_duplicates(LAYER)
    others = ok[ok["kernel"].ne("ours")].groupby(LAYER)["latency_us"].min().div(1e3).rename("inside")
    measured = ["latency_us", "hbm_gb_per_s", "tflops", "clock_mhz", "rel_error"]
    rows = (
        best[[*LAYER, "kernel", "peer_ms"]]
        .merge(ours[[*LAYER, *measured]], on=LAYER)
        .merge(others, on=LAYER, how="left")
    )
    flops_rate = np.where(rows["precision"].str.startswith("fp8"), *CUBLAS_TFLOPS)
    limit = np.maximum(rows["hbm_gb_per_s"] / READ_GB_PER_S, rows["tflops"] / flops_rate)
    rows["ms"] = rows["latency_us"] / 1e3
    return rows.assign(peer_ratio=rows["peer_ms"] / rows["ms"], limit_ratio=limit)


def _layers(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells that ended well and have all their experts on the GPU."""
    return cells[cells["status"].eq("ok") & cells["hit_rate"].isna()].rename(columns={"tokens_per_rank": "tokens"})


def _same_touched(peers: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """``peer_ms``: of few tokens times our touched experts over theirs, which their limit tells: k at one token."""
    ours = _layers(cells).query("kernel == 'ours'").drop_duplicates(LAYER)[[*LAYER, "touched_experts"]]
    one = peers[peers["tokens"].eq(1)].groupby(LAYER[:2])["limit_ms"].first().rename("limit_of_one")
    rows = peers.merge(ours, on=LAYER).merge(one, on=LAYER[:2])
    theirs = rows["topk"] * rows["limit_ms"] / rows["limit_of_one"]
    scale = np.where(rows["tokens"] <= FEW, rows["touched_experts"] / theirs, 1.0)
    return rows.assign(peer_ms=rows["median_ms"] * scale)


def bound_of(row: Any) -> str:
    """What bounds a row, read from its figures: the roof that it comes nearest to, and whether the clock fell."""
    memory = row.hbm_gb_per_s / READ_GB_PER_S
    if memory >= 0.93:
        return "memory"
    if row.tokens == 1:
        return "launches and tails of short kernels"
    slowed = f", clock down to {row.clock_mhz:.0f} MHz" if row.clock_mhz < 1700 else ""
    return ("memory with tails of waves" if memory >= 0.6 else "products and their operands") + slowed


def performance_page(cells: pd.DataFrame, manifest: dict[str, Any]) -> str:
    """The page as Markdown. Raises ValueError where the run has none of the layers."""
    rows = performance_rows(cells)
    if rows.empty:
        raise ValueError("performance: the run has no layer that peers were timed on; take one of kernels-h200")
    parts = [_head(manifest)]
    for precision, group in rows.groupby("precision"):
        parts.append(_section(str(precision), group))
    return "\n".join(parts)


def _head(manifest: dict[str, Any]) -> str:
    machine = manifest.get("machine", {})
    versions = machine.get("packages", {})
    gpus = machine.get("gpus") or [{}]
    made = ", ".join(f"{name} {versions[name]}" for name in ("torch", "triton") if name in versions)
    return f"""# Kernels on an H200

Made by `moe-workbench performance` from the run `{manifest["run_id"]}` ({manifest["created_at"][:10]}, {made}, driver
{gpus[0].get("driver", "unknown")}). Do not edit: a test compares it with what the command writes.

Whole expert layer without its router, all experts on one GPU, uniform top-k, CUDA graph, warm cache; the time is that
between two events inside the graph, the median over replays. *Best peer* is the fastest of vLLM 0.20.2, DeepGEMM 2.5.0,
triton_kernels and torch on the same part in a session of its own, up to 256 tokens scaled to as many touched experts as
ours had, since its routing was another draw; *in run* is the fastest other kernel that ran through the adapters beside
ours, on the same routing. The limit is the larger of the bytes of our row over 4.35 TB/s, which copies reach (reads
alone reach 4.5), and its FLOPs over the best cuBLAS rate (790 TFLOP/s BF16, 1,287 FP8). Ratios above 1: ours is faster.
"""


def _section(precision: str, rows: pd.DataFrame) -> str:
    few, many, mean_goal = GOALS.get(precision, (None, None, None))
    mean = float(np.exp(np.log(rows["peer_ratio"]).mean()))
    lines = [f"## {precision}", "", _summary(rows, mean, mean_goal), ""]
    lines += [
        "| layer | tokens | ours ms | best peer ms | peer / ours | limit / ours | in run / ours | error | bound by | |"
    ]
    lines += ["|---|---:|---:|---|---:|---:|---:|---:|---|---|"]
    for row in rows.itertuples():
        goal = few if row.tokens <= FEW else many
        short = "" if goal is None or row.peer_ratio >= goal else f"short of {goal:g}"
        inside = "-" if pd.isna(row.inside) else f"{row.inside / row.ms:.2f}"
        lines.append(
            f"| {row.model} | {row.tokens:,} | {number_text(row.ms)} | {number_text(row.peer_ms)} {row.kernel} "
            f"| {row.peer_ratio:.2f} | {row.limit_ratio:.2f} | {inside} | {row.rel_error:.3f} | {bound_of(row)} "
            f"| {short} |"
        )
    return "\n".join([*lines, ""])


def _summary(rows: pd.DataFrame, mean: float, goal: float | None) -> str:
    text = f"Best peer / ours: geometric mean {mean:.2f}, least {rows['peer_ratio'].min():.2f} over {len(rows)} rows"
    return text + (f" (goal of the mean {goal:g})." if goal else ".")
