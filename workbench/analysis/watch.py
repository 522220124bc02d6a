"""Watching for regressions: which verdicts are reason enough to fail a build."""

import re
from dataclasses import dataclass

import pandas as pd

from workbench.analysis.verdict import MIN_REPEATS

_RULE = re.compile(r"(slower|faster)(?::(\d+(?:\.\d+)?)%)?")


@dataclass(frozen=True)
class FailIf:
    """Fail when a cell's verdict is ``word`` and its ratio at least ``beyond`` away from 1 (0.05 is 5%)."""

    word: str
    beyond: float


def parse_fail_if(text: str) -> FailIf:
    """``slower:5%``, or ``slower`` for any. Raises ValueError for anything else."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"--fail-if {text}: write slower:5%, or slower for any difference that counts")
    return FailIf(word=match[1], beyond=float(match[2] or 0) / 100)


def judged(comparison: pd.DataFrame) -> pd.Series:
    """Which rows had what a verdict needs, whatever it came to be."""
    return (comparison["judged_by"] == "value") | (comparison["repeats"].fillna(0) >= MIN_REPEATS)


def regressions(comparison: pd.DataFrame, rule: FailIf) -> pd.DataFrame:
    """The rows of a comparison that break the rule.

    A cell of the baseline that now ends in ``error`` breaks it too. Raises ValueError when no cell at all could be
    judged, because then its silence says nothing.
    """
    able = judged(comparison)
    broken = comparison["why"] == "the candidate ended error"
    if not (able | broken).any():
        why = comparison["why"].value_counts()
        told = why.index[0] if len(why) else "the runs share no cell"
        raise ValueError(f"--fail-if: no cell could be judged ({told})")
    ratio = comparison["ratio"].astype(float)
    far = ratio >= 1 + rule.beyond if rule.word == "slower" else ratio <= 1 - rule.beyond
    return comparison[broken | (able & (comparison["verdict"] == rule.word) & far)]
