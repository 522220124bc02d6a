"""Published MoE layers as work and times: what each row's GPU computed, by the rules of those who measured it.

T tokens enter the whole expert-parallel group, E experts, K top-k. ``balanced`` rows touch min(E, T * K) experts
evenly. ``power_law_a`` rows draw expert weights by the inverse CDF of a power law on [1, 0.8 T], or on [0.01, 2] when
T * K <= E (aiconfigurator's collector), scale them to T * K pairs, and time the rank with the most of them. Their
draws are unknown; expectations over a few seeded ones stand for them.

A published time holds what follows the gate: for vllm and trtllm the top-k selection, quantisation, permutation and
finalisation of all T tokens, for sglang the fused experts. It maps to the stages permute, quantise, gemm1, activation,
gemm2 and unpermute together; the gate's GEMM, the shared expert and all communication are outside of it.
"""

from functools import cache

import numpy as np
import pandas as pd

from workbench.simulate.kernel_model import Peaks, Work, least_us, peaks_of, work_of
from workbench.simulate.published import published
from workbench.spec.catalog import load_hardware
from workbench.spec.precision import PRECISIONS, Precision

HARDWARE = {
    "a100_sxm": "a100-sxm", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200-sxm",
    "gb200": "gb200-nvl72", "b300_sxm": "b300-sxm", "gb300": "gb300-nvl72", "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}  # fmt: skip
THEIR_NAMES = {ours: theirs for theirs, ours in HARDWARE.items()}
PRECISION = {
    "bfloat16": "bf16", "fp8": "fp8_tensor", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "w4a16_mxfp4": "mxfp4_w4a16",
    "w4a8_mxfp4_mxfp8": "mxfp4_w4a8", "int4_wo": "mxfp4_w4a16",
}  # fmt: skip
"""dtype of the tables -> our recipe with its bytes and math. int4 with a scale a group of 128 has MXFP4's to 3%."""
FAMILY = ("hardware", "kernel", "version", "source", "dtype")
SHAPE = ("hidden", "inter", "top_k", "num_experts")
CURVE = (*FAMILY, *SHAPE, "tp", "ep", "distribution")
DRAWS = 8
WIDE = {
    "sglang_deepep_context": ("sglang", "deepep_context"),
    "sglang_deepep_generation": ("sglang", "deepep_generation"),
    "trtllm_wideep": ("trtllm", "wideep"),
}
"""Backend of ``moe_wide_ep`` -> our kernel and source: experts behind a dispatch, a GPU holds its own pairs alone."""
BEHIND_DISPATCH = tuple(source for _, source in WIDE.values())


@cache
def moe_layers() -> pd.DataFrame:
    """Rows of ``moe_layer`` by our names, with ``us``, the GPU's ``pairs``, ``touched`` experts and ``others``, and
    ``above_peak``: True where weights or products would have gone faster than the part can."""
    frame = renamed(published("moe_layer"))
    return with_work(frame)


@cache
def wide_layers() -> pd.DataFrame:
    """Rows of ``moe_wide_ep``, in the form of ``moe_layers``; no GPU passes over others' pairs there.

    Left out are rows whose loads are not known well enough: replicated and rebalanced experts (``eplb``), and
    ``uniform`` of DeepEP's context kernels, which touched far fewer experts than random routing does (a third of those
    rows imply more than the part's bandwidth).
    """
    frame = published("moe_wide_ep")
    unknown = frame["distribution"].str.endswith("_eplb") | frame["num_slots"].ne(frame["num_experts"])
    unknown |= frame["distribution"].eq("uniform") & frame["backend"].eq("sglang_deepep_context")
    frame = frame[~unknown].drop(columns=["num_slots", "rank0_num_tokens"])
    frame = renamed(frame)
    names = frame["kernel"].map(WIDE)
    return with_work(frame.assign(kernel=names.str[0], source=names.str[1]))


def renamed(frame: pd.DataFrame) -> pd.DataFrame:
    """A table of the publisher's columns with ours: hardware, kernel, source, top_k, tokens, us; foreign parts left
    out."""
    frame = frame[frame["hardware"].isin(HARDWARE) & frame["dtype"].isin(PRECISION)]
    names = {"backend": "kernel", "kernel_source": "source", "topk": "top_k", "num_tokens": "tokens"}
    frame = frame.rename(columns=names).reset_index(drop=True)
    frame["hardware"] = frame["hardware"].map(HARDWARE)
    frame["us"] = 1e3 * frame["latency_ms"]
    return frame.drop(columns="latency_ms")


def with_work(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with pairs, touched, others and above_peak."""
    if frame.empty:
        return frame.assign(pairs=0.0, touched=0.0, others=0.0, above_peak=False)
    keys = ["tokens", "num_experts", "top_k", "ep", "distribution"]
    loads = frame[keys].drop_duplicates()
    counted = [expected_load(*key) for key in loads.itertuples(index=False)]
    loads["pairs"], loads["touched"] = [pairs for pairs, _ in counted], [touched for _, touched in counted]
    frame = frame.merge(loads, on=keys, how="left")
    dispatched = frame["source"].isin(BEHIND_DISPATCH)
    frame["others"] = (frame["tokens"] * frame["top_k"] - frame["pairs"]).clip(lower=0.0).where(~dispatched, 0.0)
    memory_us, math_us = least_us(work_over(frame), peaks_over(frame))
    frame["above_peak"] = np.maximum(memory_us, math_us) > frame["us"].to_numpy()
    return frame


def expected_load(tokens: int, num_experts: int, top_k: int, ep: int, distribution: str) -> tuple[float, float]:
    """(pairs, touched experts) of the GPU that was timed, expected."""
    total, local = tokens * top_k, num_experts // ep
    if distribution == "balanced":
        touched = min(num_experts, total)
        return -(-total // ep), max(1.0, min(local, -(-touched // ep)))
    if distribution == "uniform":
        return total / ep, max(1.0, local * (1 - (1 - top_k / num_experts) ** tokens))
    alpha = float(distribution.removeprefix("power_law_"))
    low, high = (1.0, 0.8 * tokens) if total > num_experts else (0.01, 2.0)
    seed = np.random.default_rng([tokens, num_experts, top_k, round(100 * alpha)])
    inside = seed.random((DRAWS, num_experts)) * (high ** (1 - alpha) - low ** (1 - alpha)) + low ** (1 - alpha)
    weights = inside ** (1 / (1 - alpha))
    counts = _rounded(weights / weights.sum(1, keepdims=True) * total, total=total, most=tokens)
    by_rank = counts.reshape(DRAWS, ep, local)
    busiest = by_rank[np.arange(DRAWS), by_rank.sum(2).argmax(1)]
    return float(busiest.sum(1).mean()), float(max(1.0, (busiest > 0).sum(1).mean()))


def _rounded(shares: np.ndarray, *, total: int, most: int) -> np.ndarray:
    """Whole counts up to ``most`` that sum to ``total`` in each row: rounded; what is too much comes off the smallest
    that have any, what lacks goes to the largest with room, one each in turn."""
    counts = np.minimum(np.round(shares), most)
    for row, share in zip(counts, shares, strict=True):
        lacking = int(total - row.sum())
        if lacking < 0:
            some = np.flatnonzero(row)
            row[some[np.argsort(row[some], kind="stable")[:-lacking]]] -= 1
        while (lacking := int(total - row.sum())) > 0:
            open_ = np.flatnonzero(row < most)
            row[open_[np.argsort(-share[open_], kind="stable")[:lacking]]] += 1
    return counts


def work_over(frame: pd.DataFrame) -> Work:
    """Work of every row, as arrays."""
    pieces = [
        precision_work(*key) for key in zip(frame["dtype"], frame["hidden"], frame["inter"] // frame["tp"], strict=True)
    ]
    columns = {
        name: np.array([getattr(piece, name) for piece in pieces], float)
        for name in ("weight_bytes", "pair_bytes", "pair_flops", "other_bytes", "columns")
    }
    counts = {name: frame[name].to_numpy(float) for name in ("pairs", "touched", "others")}
    return Work(**counts, **columns)


def peaks_over(frame: pd.DataFrame) -> Peaks:
    """Peaks of every row's GPU, as arrays."""
    pieces = [part_peaks(*key) for key in zip(frame["hardware"], frame["dtype"], strict=True)]
    return Peaks(
        *(
            np.array([getattr(one, name) for one in pieces], float)
            for name in ("bytes_per_us", "flops_per_us", "multiprocessors")
        )
    )


def precision_of(dtype: str) -> Precision:
    """Our recipe for a dtype of the tables, or for a name of our own."""
    return PRECISIONS[PRECISION.get(dtype, dtype)]


@cache
def precision_work(dtype: str, hidden: int, intermediate: int) -> Work:
    return work_of(precision_of(dtype), hidden=int(hidden), intermediate=int(intermediate), pairs=1.0, touched=1.0)


@cache
def part_peaks(hardware: str, dtype: str) -> Peaks:
    return peaks_of(load_hardware(hardware), precision_of(dtype))
