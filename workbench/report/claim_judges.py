"""One function a claim: from the cells of its suite to sentences and a table of text.

Every number in a sentence is computed from the cells; a sentence says in how many of the conditions the claim holds.
"""

import json
import math
from collections.abc import Sequence

import pandas as pd

from workbench.report.units import bytes_text, percent_text, time_text

Judged = tuple[str, pd.DataFrame]
MIN_EFFECT = 0.02
"""A smaller difference counts as none."""


def share(cells: pd.DataFrame) -> Judged:
    """Communication's part of the layer, by GPUs and tokens, for each way to send."""
    cells = cells.assign(way=cells["strategy"] + ", " + cells["dispatch_dtype"])
    inside = cells["comm_fraction"].between(0.3, 0.5)
    above, below = (cells["comm_fraction"] > 0.5).sum(), (cells["comm_fraction"] < 0.3).sum()
    low, high = cells["comm_fraction"].min(), cells["comm_fraction"].max()
    text = (
        f"From {percent_text(low)} to {percent_text(high)} of the layer: in {inside.sum()} of {len(cells)} conditions "
        f"within 30 to 50%, in {below} below, in {above} above. "
        f"{_range_of(cells[cells['nodes'].eq(1)], 'On one node')}; "
        f"{_range_of(cells[cells['nodes'].gt(1)], 'on more')}."
    )
    return text, _grid(cells, ["num_gpus", "tokens_per_rank"], "way", "comm_fraction", percent_text)


def growth(cells: pd.DataFrame) -> Judged:
    """The exponent of wire bytes in the number of GPUs, from one size to the next."""
    rows, ranges = [], []
    for strategy, group in cells.groupby("strategy", sort=False):
        exponents: list[float] = []
        before = None
        for row in group.sort_values("num_gpus").itertuples():
            if before is not None:
                steep = math.log(row.wire_bytes / before.wire_bytes) / math.log(row.num_gpus / before.num_gpus)
                exponents.append(steep)
            shown = f"{exponents[-1]:.2f}" if before is not None else "-"
            each = bytes_text(row.wire_bytes / row.num_gpus)
            rows.append((f"{strategy}, {row.num_gpus} GPUs", bytes_text(row.wire_bytes), each, shown))
            before = row
        ranges.append(f"{min(exponents):.2f} to {max(exponents):.2f} with {strategy}")
    columns = ["", "bytes in all", "bytes a GPU", "exponent"]
    text = (
        f"With as many tokens a GPU, bytes grow with the GPUs to the power {' and '.join(ranges)}. Each token goes to "
        "k experts wherever they are, so what a GPU sends ends at k copies a token; one copy a node is shared by fewer "
        "experts as nodes grow in number. What grows quadratically is the number of pairs that exchange messages."
    )
    return text, pd.DataFrame(rows, columns=columns)


def precision(cells: pd.DataFrame) -> Judged:
    """Time and weights of each precision over those of BF16, with how the part multiplies."""
    rows, doubled, steps = [], 0, 0
    for (part, tokens), group in cells.groupby(["hardware", "tokens_per_rank"], sort=False):
        base = group[group["precision"].eq("bf16")].iloc[0]
        for row in group.itertuples():
            speed = base.latency_us / row.latency_us
            bits = {"bf16": 16, "fp8_block": 8}.get(row.precision, 4)
            steps += bits < 16
            doubled += bits < 16 and speed >= 0.9 * 16 / bits
            rows.append((f"{part}, {tokens:,} tokens", row.precision, row.math_path, time_text(row.latency_us),
                         f"{speed:.2f}x", f"{row.weight_bytes / base.weight_bytes:.2f}"))  # fmt: skip
    columns = ["part", "precision", "math", "layer", "speed of BF16", "weights of BF16"]
    text = (
        f"Memory: yes, but for the scales. Throughput of the layer: in {doubled} of {steps} conditions within 10% of "
        "what the bits promise, as communication, gate and launches do not shrink with the weights, and what is "
        "multiplied wide (`upcast`) gains from memory alone."
    )
    return text, pd.DataFrame(rows, columns=columns)


def gradients(cells: pd.DataFrame) -> Judged:
    """Error of the gradients with E5M2 over that with E4M3, by data and granularity."""
    kinds = cells["precision"].str.extract(r"^(?P<format>e4m3|e5m2)-(?P<granularity>.+)$")
    cells = cells.assign(**kinds).replace({"granularity": {"gradients": "1x128 blocks"}})
    pairs = cells.pivot_table(index=["data", "granularity"], columns="format", values="grad_rel_error")
    better = (pairs["e5m2"] < pairs["e4m3"] * (1 - MIN_EFFECT)).sum()
    rows = [(f"{data}, {granularity}", f"{row.e4m3:.3f}", f"{row.e5m2:.3f}", f"{row.e5m2 / row.e4m3:.2f}")
            for (data, granularity), row in zip(pairs.index, pairs.itertuples(), strict=True)]  # fmt: skip
    text = (
        f"By the error of the gradients against float32, E5M2 is better in {better} of {len(pairs)} conditions: with a "
        "scale a block or a tensor, two bits of mantissa cost more than three bits of range give. Range pays where one "
        "stale scale must hold (delayed scaling), which this suite does not ask."
    )
    return text, pd.DataFrame(rows, columns=["gradients of", "E4M3 error", "E5M2 error", "E5M2 / E4M3"])


def balance(cells: pd.DataFrame) -> Judged:
    """Load of the busiest rank over the mean after the steps, by what balances."""
    pairs = cells.pivot_table(index="skew", columns="training_balance", values="load_max_over_mean")
    steps = json.loads(cells["cell_json"].iloc[0])["workload"]["steps"]
    as_well = (pairs["bias"] <= pairs["aux_loss"] * (1 + MIN_EFFECT)).sum()
    text = (
        f"After {steps} steps the bias leaves the busiest rank at most as loaded as the loss does in {as_well} of "
        f"{len(pairs)} conditions; neither follows a popularity that moves "
        "faster than they step."
    )
    table = pairs[["none", "aux_loss", "bias"]].map("{:.2f}".format).reset_index()
    return text, table.rename(columns={"skew": "load, max/mean", "aux_loss": "auxiliary loss"})


def hierarchy(cells: pd.DataFrame) -> Judged:
    """Time of the flat exchange over the two-level one, by GPUs and bytes a rank."""
    pairs = _pairs(cells, ["num_gpus", "bytes_per_rank"], "strategy", "flat", "two_dh")
    wins = pairs[pairs["ratio"] > 1 + MIN_EFFECT]
    text = f"Two levels (two_dh) win in {len(wins)} of {len(pairs)} conditions"
    if len(wins):
        text += f", up to {wins['ratio'].max():.1f}x: from {wins['num_gpus'].min()} GPUs on, at {_sizes(wins)} a rank"
    text += "; where messages are large the extra pass inside the node costs more than fewer messages give."
    rows = pairs.assign(size=pairs["bytes_per_rank"].map(bytes_text))
    return text, _grid(rows, ["num_gpus"], "size", "ratio", "{:.2f}x".format)


def overlap(cells: pd.DataFrame) -> Judged:
    """Time without overlap over that with it, and the part of the communication that is hidden."""
    rows, hidden_most = [], []
    for tokens, group in cells.groupby("tokens_per_rank"):
        base = group[group["overlap"].eq("none")].iloc[0]
        exposed = base.latency_us * base.comm_fraction
        hidden = []
        for row in group[group["overlap"].ne("none")].itertuples():
            name = row.overlap if pd.isna(row.overlap_degree) else f"{row.overlap} {row.overlap_degree}"
            hidden.append(1 - row.latency_us * row.comm_fraction / exposed)
            rows.append((f"{tokens:,} tokens, {name}", time_text(base.latency_us), time_text(row.latency_us),
                         f"{base.latency_us / row.latency_us:.2f}x", percent_text(hidden[-1])))  # fmt: skip
        hidden_most.append((tokens, max(hidden), max(base.latency_us / group["latency_us"])))
    best = "; ".join(f"{tokens:,} tokens: {gain:.2f}x" for tokens, _, gain in hidden_most)
    text = (
        f"It hides, and pays with the batch (best of each: {best}): small chunks hide most and cost most in launches."
    )
    return text, pd.DataFrame(rows, columns=["batch", "without", "with", "gain", "hidden"])


def skew(cells: pd.DataFrame) -> Judged:
    """Time under the power law over that under uniform traffic, by batch."""
    where = cells["ep"].map(lambda ep: "one GPU" if ep == 1 else f"EP {ep}")
    pairs = _pairs(cells.assign(where=where), ["where", "tokens_per_rank"], "skew", "power_law(1.2)", "uniform")
    faster, slower = (pairs["ratio"] < 1 - MIN_EFFECT).sum(), (pairs["ratio"] > 1 + MIN_EFFECT).sum()
    text = (
        f"Time under the power law over uniform: {pairs['ratio'].min():.2f} to {pairs['ratio'].max():.2f}; faster in "
        f"{faster} and slower in {slower} of {len(pairs)} conditions. Few tokens touch fewer experts under skew and "
        "read less; many wait for the busiest rank."
    )
    return text, _grid(pairs, ["where"], "tokens_per_rank", "ratio", "{:.2f}x".format)


def redundancy(cells: pd.DataFrame) -> Judged:
    """Time with the experts as they lie over that with EPLB's copies, by batch."""
    rows, gains = [], {}
    for tokens, group in cells.groupby("tokens_per_rank"):
        base = group[group["placement"].eq("linear")].iloc[0]
        alone = group[group["placement"].eq("eplb") & group["redundant_experts"].eq(0)].iloc[0]
        for row in group.itertuples():
            name = row.placement if row.placement == "linear" else f"{row.placement}, {row.redundant_experts} copies"
            rows.append((f"{tokens:,} tokens, {name}", f"{row.load_max_over_mean:.2f}", time_text(row.latency_us),
                         f"{base.latency_us / row.latency_us:.2f}x"))  # fmt: skip
        gains[tokens] = alone.latency_us / group[group["redundant_experts"].gt(0)]["latency_us"].min()
    best = "; ".join(f"{tokens:,} tokens: {gain:.2f}x" for tokens, gain in gains.items())
    text = (
        f"Over placement alone, copies gain ({best}): they pay where a batch is bound by its busiest rank, and a "
        "small one reads them for nothing."
    )
    return text, pd.DataFrame(rows, columns=["batch", "load, max/mean", "layer", "over linear"])


def _range_of(cells: pd.DataFrame, head: str) -> str:
    return f"{head} {percent_text(cells['comm_fraction'].min())} to {percent_text(cells['comm_fraction'].max())}"


def _sizes(rows: pd.DataFrame) -> str:
    return " and ".join(bytes_text(size) for size in sorted(rows["bytes_per_rank"].unique()))


def _pairs(cells: pd.DataFrame, keys: Sequence[str], axis: str, first: str, second: str) -> pd.DataFrame:
    """``ratio`` of the latencies of two values of ``axis`` for every condition that has both."""
    wide = cells.pivot_table(index=list(keys), columns=axis, values="latency_us")
    wide = wide.dropna(subset=[first, second]).reset_index()
    return wide.assign(ratio=wide[first] / wide[second], first=wide[first])


def _grid(cells: pd.DataFrame, rows: Sequence[str], columns: str, values: str, text) -> pd.DataFrame:
    """One text a cell; the names of ``rows`` joined make the first column."""
    labels = {"num_gpus": "{:,} GPUs", "tokens_per_rank": "{:,} tokens", "where": "{}"}
    wide = cells.pivot_table(index=list(rows), columns=columns, values=values, sort=False)
    keys = [at if isinstance(at, tuple) else (at,) for at in wide.index]
    names = [", ".join(labels[key].format(value) for key, value in zip(rows, at, strict=True)) for at in keys]
    body = wide.map(lambda value: "-" if pd.isna(value) else text(value))
    body.columns = [labels.get(columns, "{}").format(name) for name in body.columns]
    return pd.concat([pd.Series(names, name=""), body.reset_index(drop=True)], axis=1)
