"""Faster, slower, same or unclear: many comparisons of two cells, judged together.

The rule, in order:

1. Cells that did not end ``ok``, of different devices (cpu against cuda) or of different engines (measured against
   simulated) are not ranked: ``unclear``, and the reason says so.
2. Simulated cells hold one value without noise: by value, ``same`` within the minimum effect (2%).
3. Everything measured is judged by raw samples (slowest rank of each iteration) of at least two independent repeats a
   side. Without them ``unclear``: what samples of one run cannot show is how far the next run lies from it.
4. A difference counts when all of these say so: the ratio is beyond the minimum effect; its bootstrap interval over
   repeats and samples leaves out 1; Mann-Whitney's p of the raw samples is below 1%; and the difference between
   repeats, held against their scatter pooled over all cells of the comparison, is discovered with at most 5% of
   discoveries false (Benjamini-Hochberg over all cells compared).
5. ``same`` needs the bootstrap interval and the 90% interval by the repeats' scatter within the minimum effect.
6. A cpu, and gloo on it, is a noisy device: one code on one machine differs there by up to 1.75x between days. So a
   difference counts only where the whole interval is beyond that, and nothing is ``same``. A noise floor measured by
   an A/A run replaces the 1.75x, and raises the minimum effect of other devices where it is larger.
7. All else is ``unclear``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from workbench.analysis.statistics import (
    Contrast,
    Noise,
    Series,
    contrast,
    false_discovery,
    own_spread,
    pooled_noise,
    rank_p_value,
    ratio_interval,
)

Word = Literal["faster", "slower", "same", "unclear"]

MIN_EFFECT = 0.02
MIN_SAMPLES = 5
MIN_REPEATS = 2
MAX_P = 0.01
MAX_FALSE = 0.05
EQUIVALENCE = 0.90
NOISY_DEVICES = ("cpu",)
NOISY_EFFECT = 0.75


@dataclass(frozen=True, kw_only=True)
class Side:
    """One cell of a comparison; ``series`` when it was measured and its samples are there."""

    status: str
    engine: str
    device: str | None
    latency_us: float | None
    series: Series | None = None

    @property
    def num_repeats(self) -> int:
        return self.series.num_repeats if self.series else 0


Pair = tuple[Side, Side]
"""Candidate and baseline."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``ratio`` is candidate over baseline, so below 1 is faster; ``method`` is repeats, samples, value or none.

    ``p_value`` is Mann-Whitney's, ``q_value`` the share of false discoveries among those as sure as this one, and
    ``repeats`` the fewer of the two sides. ``candidate_us`` and ``baseline_us`` are the times that ``ratio`` is of:
    geometric means over the repeats' medians.
    """

    word: Word
    reason: str
    method: str
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    p_value: float | None = None
    q_value: float | None = None
    spread: float | None = None
    repeats: int | None = None
    candidate_us: float | None = None
    baseline_us: float | None = None


def judge(candidate: Side, baseline: Side, *, floors: Mapping[str, float] | None = None) -> Verdict:
    """Compare two cells by the rule of this module, as if they were the only ones."""
    return judge_all([(candidate, baseline)], floors=floors)[0]


def judge_all(pairs: Sequence[Pair], *, floors: Mapping[str, float] | None = None) -> list[Verdict]:
    """Compare every pair by the rule of this module; ``floors`` is the noise floor by device, where one is known."""
    verdicts = [_by_kind(*pair) for pair in pairs]
    open_places = [place for place, verdict in enumerate(verdicts) if verdict is None]
    noises = _noises([pairs[place] for place in open_places])
    contrasts = {place: _contrast(*pairs[place], noises) for place in open_places}
    q_values = false_discovery([each.p_value for each in contrasts.values()])
    for place, q_value in zip(open_places, q_values, strict=True):
        candidate, baseline = pairs[place]
        found = _found(candidate, baseline, float(q_value))
        verdicts[place] = _by_repeats(found, contrasts[place], candidate.device, floors or {})
    return [verdict for verdict in verdicts if verdict is not None]


def _by_kind(candidate: Side, baseline: Side) -> Verdict | None:
    """The verdict that needs no statistics; None for a pair whose repeats must tell."""
    refusal = _refusal(candidate, baseline)
    if refusal:
        return Verdict(word="unclear", reason=refusal, method="none")
    ratio = candidate.latency_us / baseline.latency_us
    if candidate.engine != baseline.engine:
        reason = f"times of {candidate.engine} and {baseline.engine} are not ranked against one another"
        return Verdict(word="unclear", reason=reason, method="none", ratio=ratio)
    if candidate.series is None or baseline.series is None:
        if candidate.engine == "simulate":
            return _by_value(ratio)
        return Verdict(word="unclear", reason="no samples to judge by", method="none", ratio=ratio, repeats=0)
    return _too_few(candidate, baseline)


def _refusal(candidate: Side, baseline: Side) -> str:
    for name, side in (("baseline", baseline), ("candidate", candidate)):
        if side.status != "ok":
            return f"the {name} ended {side.status}"
        if side.latency_us is None or not side.latency_us > 0:
            return f"the {name} has no latency"
    if candidate.device != baseline.device:
        return f"{candidate.device} and {baseline.device} times are not ranked against one another"
    return ""


def _by_value(ratio: float) -> Verdict:
    if abs(ratio - 1) <= MIN_EFFECT:
        return Verdict(word="same", reason=f"within {MIN_EFFECT:.0%}", method="value", ratio=ratio)
    word: Word = "faster" if ratio < 1 else "slower"
    return Verdict(word=word, reason=f"beyond {MIN_EFFECT:.0%}", method="value", ratio=ratio)


def _too_few(candidate: Side, baseline: Side) -> Verdict | None:
    """What a pair lacks for a verdict, with the figures that can be told all the same."""
    repeats = min(candidate.num_repeats, baseline.num_repeats)
    fewest = min(len(part) for side in (candidate, baseline) for part in side.series.parts())
    if repeats >= MIN_REPEATS and fewest >= MIN_SAMPLES:
        return None
    if fewest < MIN_SAMPLES:
        reason = f"only {fewest} sample{'s' * (fewest != 1)} a repeat, {MIN_SAMPLES} are needed"
    else:
        reason = f"{repeats} repeat a side, {MIN_REPEATS} are needed: measure with --repeats 3, or merge runs"
    found = _found(candidate, baseline, None)
    return replace(found, reason=reason, method="samples")


def _found(candidate: Side, baseline: Side, q_value: float | None) -> Verdict:
    """The figures of a pair, without a word yet."""
    new, old = candidate.series, baseline.series
    assert new is not None
    assert old is not None
    low, high = ratio_interval(new, old)
    candidate_us, baseline_us = (float(np.exp(series.log_medians().mean())) for series in (new, old))
    return Verdict(
        word="unclear",
        reason="",
        method="repeats",
        ratio=candidate_us / baseline_us,
        ratio_low=low,
        ratio_high=high,
        p_value=rank_p_value(new.us, old.us),
        q_value=q_value,
        spread=max(own_spread(new), own_spread(old)),
        repeats=min(candidate.num_repeats, baseline.num_repeats),
        candidate_us=candidate_us,
        baseline_us=baseline_us,
    )


def _noises(pairs: Sequence[Pair]) -> dict[tuple[str | None, str], Noise]:
    """How repeats scatter on each device and by each engine, over all cells that stand on either side."""
    kinds: dict[tuple[str | None, str], dict[int, Series]] = {}
    for side in (side for pair in pairs for side in pair):
        assert side.series is not None
        kinds.setdefault((side.device, side.engine), {})[id(side.series)] = side.series
    return {kind: pooled_noise(list(series.values())) for kind, series in kinds.items()}


def _contrast(candidate: Side, baseline: Side, noises: Mapping[tuple[str | None, str], Noise]) -> Contrast:
    assert candidate.series is not None
    assert baseline.series is not None
    return contrast(candidate.series, baseline.series, noises[candidate.device, candidate.engine])


def _by_repeats(found: Verdict, between: Contrast, device: str | None, floors: Mapping[str, float]) -> Verdict:
    noisy = device in NOISY_DEVICES and device not in floors
    effect = max(floors.get(device or "", MIN_EFFECT), MIN_EFFECT)
    missing = _what_is_missing(found, effect, noisy=noisy, device=device)
    if not missing:
        return replace(found, word="faster" if found.ratio < 1 else "slower", reason=f"beyond {effect:.1%}")
    low, high = between.interval(EQUIVALENCE)
    least, most = min(low, found.ratio_low), max(high, found.ratio_high)
    if not noisy and least >= 1 - MIN_EFFECT and most <= 1 + MIN_EFFECT:
        return replace(found, word="same", reason=f"within {MIN_EFFECT:.0%}")
    return replace(found, reason=missing)


def _what_is_missing(found: Verdict, effect: float, *, noisy: bool, device: str | None) -> str:
    """Why the difference does not count; empty when it does."""
    bound = 1 + NOISY_EFFECT
    if noisy and found.ratio_low <= bound and found.ratio_high >= 1 / bound:
        return f"one code differs by up to {bound:.2f}x between runs on a {device}; measure its floor with --noise"
    if 1 - effect < found.ratio < 1 + effect:
        return f"the ratio is within {effect:.1%} of 1, and its interval is not"
    if found.ratio_low <= 1 <= found.ratio_high:
        return "the interval holds 1"
    if found.p_value > MAX_P:
        return f"the samples overlap (p {found.p_value:.2g})"
    if found.q_value > MAX_FALSE:
        return f"repeats scatter too widely for it ({found.q_value:.0%} of such findings would be false)"
    return ""
