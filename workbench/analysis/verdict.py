"""Faster, slower, same or unclear: one comparison of two cells.

The rule, in order:

1. Cells that did not end ``ok``, of different devices (cpu against cuda) or of different engines (measured against
   simulated) are not ranked: ``unclear``, and the reason says so.
2. Simulated cells hold one value without noise: by value, ``same`` within the minimum effect (2%).
3. Without raw samples but with confidence intervals: a difference counts when the intervals are apart and the
   effect is above the minimum, and is ``same`` when the whole of both lies within it.
4. With raw samples (slowest rank of each iteration): the bootstrap interval of the ratio of medians must lie beyond
   a threshold and Mann-Whitney's p below 1%. The threshold is the larger of the minimum effect and the A/A spread,
   by which either cell disagrees with itself (halves in time, or launches).
5. A cpu is a noisy device: from a single launch there, a difference counts only beyond 10% and three times the A/A
   spread, and nothing is called ``same``.
6. ``same`` needs the interval and the A/A spread within the minimum effect. All else is ``unclear``.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from workbench.analysis.statistics import Series, own_spread, rank_p_value, ratio_interval

Word = Literal["faster", "slower", "same", "unclear"]

MIN_EFFECT = 0.02
MIN_SAMPLES = 5
MAX_P = 0.01
NOISY_DEVICES = ("cpu",)
NOISY_EFFECT = 0.10
NOISY_SPREADS = 3.0


@dataclass(frozen=True, kw_only=True)
class Side:
    """One cell of a comparison; ``series`` when it was measured and its samples are there."""

    status: str
    engine: str
    device: str | None
    latency_us: float | None
    interval_us: tuple[float, float] | None = None
    series: Series | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``ratio`` is candidate over baseline, so below 1 is faster; ``method`` is samples, interval, value or none."""

    word: Word
    reason: str
    method: str
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    p_value: float | None = None
    spread: float | None = None


def judge(candidate: Side, baseline: Side) -> Verdict:
    """Compare two cells by the rule of this module."""
    refusal = _refusal(candidate, baseline)
    if refusal:
        return Verdict(word="unclear", reason=refusal, method="none")
    ratio = candidate.latency_us / baseline.latency_us
    if candidate.engine != baseline.engine:
        reason = f"times of {candidate.engine} and {baseline.engine} are not ranked against one another"
        return Verdict(word="unclear", reason=reason, method="none", ratio=ratio)
    if candidate.series and baseline.series:
        return _by_samples(candidate, baseline)
    if candidate.interval_us and baseline.interval_us:
        return _by_interval(ratio, candidate.interval_us, baseline.interval_us, noisy=_is_noisy(candidate))
    if candidate.engine == "simulate":
        return replace(_by_bounds(ratio, ratio, MIN_EFFECT, may_be_same=True), ratio=ratio, method="value")
    reason = "neither samples nor an interval to judge by"
    return Verdict(word="unclear", reason=reason, method="none", ratio=ratio)


def _refusal(candidate: Side, baseline: Side) -> str:
    for name, side in (("baseline", baseline), ("candidate", candidate)):
        if side.status != "ok":
            return f"the {name} ended {side.status}"
        if side.latency_us is None or not side.latency_us > 0:
            return f"the {name} has no latency"
    if candidate.device != baseline.device:
        return f"{candidate.device} and {baseline.device} times are not ranked against one another"
    return ""


def _is_noisy(side: Side) -> bool:
    return side.device in NOISY_DEVICES and (side.series is None or side.series.num_repeats < 2)


def _by_samples(candidate: Side, baseline: Side) -> Verdict:
    assert candidate.series is not None
    assert baseline.series is not None
    new, old = candidate.series, baseline.series
    ratio = float(np.median(new.us) / np.median(old.us))
    fewest = min(len(new.us), len(old.us))
    if fewest < MIN_SAMPLES:
        reason = f"only {fewest} samples, {MIN_SAMPLES} are needed"
        return Verdict(word="unclear", reason=reason, method="samples", ratio=ratio)
    low, high = ratio_interval(new.us, old.us)
    p_value = rank_p_value(new.us, old.us)
    spread = max(own_spread(new), own_spread(old))
    noisy = _is_noisy(candidate) or _is_noisy(baseline)
    threshold = max(NOISY_EFFECT, NOISY_SPREADS * spread) if noisy else max(MIN_EFFECT, spread)
    verdict = _by_bounds(low, high, threshold, may_be_same=not noisy and spread <= MIN_EFFECT)
    if verdict.word in ("faster", "slower") and p_value > MAX_P:
        verdict = Verdict(word="unclear", reason=f"the samples overlap (p {p_value:.2g})", method="samples")
    if verdict.word == "unclear" and noisy:
        reason = f"one run on a noisy {candidate.device}: here a difference counts beyond {threshold:.0%}"
        verdict = replace(verdict, reason=reason)
    return replace(
        verdict, method="samples", ratio=ratio, ratio_low=low, ratio_high=high, p_value=p_value, spread=spread
    )


def _by_interval(
    ratio: float, candidate: tuple[float, float], baseline: tuple[float, float], *, noisy: bool
) -> Verdict:
    low, high = candidate[0] / baseline[1], candidate[1] / baseline[0]
    threshold = NOISY_EFFECT if noisy else 0.0
    verdict = _by_bounds(low, high, threshold, may_be_same=not noisy)
    if verdict.word in ("faster", "slower") and abs(ratio - 1) <= MIN_EFFECT:
        verdict = Verdict(word="unclear", reason="below the minimum effect", method="interval")
    return replace(verdict, method="interval", ratio=ratio, ratio_low=low, ratio_high=high)


def _by_bounds(low: float, high: float, threshold: float, *, may_be_same: bool) -> Verdict:
    """The word for an interval of the ratio that must lie wholly beyond ``1 +- threshold``."""
    if may_be_same and low >= 1 - MIN_EFFECT and high <= 1 + MIN_EFFECT:
        return Verdict(word="same", reason=f"within {MIN_EFFECT:.0%}", method="value")
    if high < 1 - threshold:
        return Verdict(word="faster", reason=f"beyond {threshold:.1%}", method="value")
    if low > 1 + threshold:
        return Verdict(word="slower", reason=f"beyond {threshold:.1%}", method="value")
    return Verdict(word="unclear", reason=f"the interval reaches into {threshold:.1%}", method="value")
