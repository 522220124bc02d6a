"""What the field repeats about MoE layers, and under which conditions this product's own runs bear it out.

The suites are ``scenarios/claims``; a claim is one entry of CLAIMS, its judgement one function of ``claim_judges``.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import pandas as pd

from workbench.report import claim_judges as judges


@dataclass(frozen=True)
class Claim:
    """What is said, the suite that asks, and who makes sentences and a table of text from its cells."""

    says: str
    suite: str
    judge: Callable[[pd.DataFrame], tuple[str, pd.DataFrame]]


CLAIMS = (
    Claim("All-to-all takes 30 to 50% of an MoE layer", "all-to-all-share", judges.share),
    Claim("All-to-all traffic grows quadratically with the cluster", "quadratic-traffic", judges.growth),
    Claim("Each step down in precision doubles throughput and halves memory", "precision-steps", judges.precision),
    Claim("E4M3 forward and E5M2 backward beat E4M3 alone", "gradient-formats", judges.gradients),
    Claim("A bias without auxiliary loss balances as well as the loss", "bias-against-loss", judges.balance),
    Claim("A hierarchical all-to-all wins at scale", "hierarchical-at-scale", judges.hierarchy),
    Claim("Overlap hides communication", "overlap-hides", judges.overlap),
    Claim("Skew speeds up small decode and slows down large prefill", "skew-and-batch", judges.skew),
    Claim("Redundant experts pay", "redundant-experts", judges.redundancy),
)


def claims_page(cells: pd.DataFrame, planned: Mapping[str, Collection[str]], *, run_id: str) -> str:
    """Markdown: each claim, what the run says of it, its conditions. ``planned``: cell ids of each claim's suite.

    Raises ValueError where the run has none of a suite's cells, or not all.
    """
    parts = [
        "# Claims, and when they hold\n",
        f"Made by `moe-workbench claims` from the run `{run_id}`. Do not edit: a test compares it with what the",
        "command writes. Each claim is a suite of `scenarios/claims`; run them all, or change what they ask:\n",
        "```\nmoe-workbench run scenarios/claims/*.yaml\nmoe-workbench claims latest --results results\n```\n",
    ]
    for claim in CLAIMS:
        mine = _cells_of(claim, cells, planned[claim.suite])
        sentences, table = claim.judge(mine)
        parts += [f"## {claim.says}?\n", sentences + "\n", _table(table), _conditions(mine), ""]
    return "\n".join(parts)


def _cells_of(claim: Claim, cells: pd.DataFrame, ids: Collection[str]) -> pd.DataFrame:
    """In the order of the suite. A cell that two suites ask for stands in a run once."""
    ok = cells[cells["status"].eq("ok")].set_index("cell_id", drop=False)
    missing = [cell_id for cell_id in ids if cell_id not in ok.index]
    if missing:
        raise ValueError(
            f"claims: {len(missing)} of {len(ids)} cells of {claim.suite} are not ok in the run; "
            "run the suites of scenarios/claims in one run"
        )
    return ok.loc[list(ids)].reset_index(drop=True)


def _table(table: pd.DataFrame) -> str:
    """A Markdown table; its first column is text, the others are figures."""
    head = "| " + " | ".join(map(str, table.columns)) + " |"
    rule = "|" + "|".join(["---"] + ["---:"] * (len(table.columns) - 1)) + "|"
    rows = ["| " + " | ".join(map(str, row)) + " |" for row in table.itertuples(index=False)]
    return "\n".join([head, rule, *rows, ""])


def _conditions(cells: pd.DataFrame) -> str:
    """Engine, method, band and parts of the cells, in one line."""
    made = sorted({f"{engine} ({method})" for engine, method in zip(cells["engine"], cells["method"], strict=True)})
    parts = sorted({str(part) for part in cells["hardware"].dropna()})
    bands = cells["error_band_pct"].dropna()
    text = f"Conditions: {', '.join(made)}, {', '.join(parts)}, {len(cells)} cells"
    return text + (f", error bands of {bands.min():.0f} to {bands.max():.0f}%." if len(bands) else ", no error band.")
