"""Verdicts: what they may say and when they must not."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from workbench.analysis.statistics import Series, own_spread, ratio_interval, slowest_series
from workbench.analysis.verdict import Side, judge, judge_all


def series(median, *, noise=0.01, number=60, seed=0, repeats=3, scatter=0.0, drift=0.0):
    """Samples that scatter by ``noise`` within repeats, whose medians scatter by ``scatter``."""
    rng = np.random.default_rng(seed)
    shift = np.exp(scatter * rng.standard_normal(repeats))
    repeat = np.repeat(np.arange(repeats), -(-number // repeats))[:number]
    us = median * shift[repeat] * (1 + noise * rng.standard_normal(number)) * np.linspace(1, 1 + drift, number)
    return Series(us=us, repeat=repeat)


def side(us=100.0, *, device="cuda", engine="measure", samples=None, status="ok"):
    latency = float(np.median(samples.us)) if samples else us
    return Side(status=status, engine=engine, device=device, latency_us=latency, series=samples)


def words(candidate, baseline, **floors):
    return judge(candidate, baseline, floors=floors).word


def test_clear_differences_on_a_gpu():
    base = side(samples=series(100))
    assert words(side(samples=series(80, seed=1)), base) == "faster"
    assert words(side(samples=series(110, seed=1)), base) == "slower"
    assert words(side(samples=series(100, seed=1)), base) == "same"
    verdict = judge(side(samples=series(80, seed=1)), base)
    assert verdict.ratio_low < verdict.ratio < verdict.ratio_high < 0.85
    assert (verdict.method, verdict.repeats) == ("repeats", 3)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_cell_against_itself_is_never_faster_or_slower(device):
    pairs = [
        tuple(side(device=device, samples=series(100, noise=0.05, scatter=0.02, seed=2 * n + k)) for k in (0, 1))
        for n in range(60)
    ]
    assert {verdict.word for verdict in judge_all(pairs)} <= {"same", "unclear"}


def test_one_repeat_a_side_tells_nothing():
    base = side(samples=series(100))
    for device in ("cuda", "cpu"):
        once = side(samples=series(10, repeats=1, seed=1), device=device)
        verdict = judge(once, replace(base, device=device))
        assert verdict.word == "unclear"
        assert "1 repeat a side, 2 are needed" in verdict.reason
        assert verdict.ratio == pytest.approx(0.1, rel=0.01)
    assert words(side(samples=series(10, repeats=2, seed=1)), base) == "faster"


def test_a_noisy_device_needs_more_than_it_differs_by_from_day_to_day():
    """One code on gloo and a cpu differs by up to 1.75x; a floor measured there by an A/A run replaces that."""
    base = side(device="cpu", samples=series(100))
    for ratio in (1 / 1.74, 0.7, 0.94, 1.0, 1.2, 1.7):
        verdict = judge(side(device="cpu", samples=series(100 * ratio, seed=1)), base)
        assert verdict.word == "unclear", ratio
    assert "one code differs by up to 1.75x between runs on a cpu" in verdict.reason
    assert words(side(device="cpu", samples=series(50, seed=1)), base) == "faster"
    assert words(side(device="cpu", samples=series(185, seed=1)), base) == "slower"
    assert words(side(device="cpu", samples=series(94, seed=1)), base, cpu=0.03) == "faster"
    assert words(side(device="cpu", samples=series(94, seed=1)), base, cpu=0.08) == "unclear"


def test_repeats_that_scatter_raise_what_it_takes():
    """Within each repeat all is steady; only the repeats show that 8% is nothing."""
    wide = side(samples=series(100, scatter=0.1, seed=3))
    assert own_spread(wide.series) > 0.05
    near = side(samples=series(108, scatter=0.1, seed=8))
    assert words(near, wide) == "unclear"
    assert words(side(samples=series(200, seed=1)), wide) == "slower"


def test_few_samples_are_unclear():
    verdict = judge(side(samples=series(50, number=12)), side(samples=series(100, number=12)))
    assert (verdict.word, verdict.reason) == ("unclear", "only 4 samples a repeat, 5 are needed")


def test_simulated_cells_are_judged_by_value():
    base = side(100.0, engine="simulate")
    assert words(side(97.0, engine="simulate"), base) == "faster"
    assert words(side(101.0, engine="simulate"), base) == "same"
    assert words(side(103.0, engine="simulate"), base) == "slower"
    assert judge(side(97.0, engine="simulate"), base).method == "value"


def test_measured_cells_without_samples_are_unclear():
    verdict = judge(side(80.0), side(100.0))
    assert (verdict.word, verdict.reason, verdict.ratio) == ("unclear", "no samples to judge by", 0.8)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": "cpu"}, "cpu and cuda times are not ranked against one another"),
        ({"engine": "simulate"}, "times of simulate and measure are not ranked against one another"),
        ({"status": "error"}, "the candidate ended error"),
        ({"latency_us": None}, "the candidate has no latency"),
        ({"latency_us": 0.0}, "the candidate has no latency"),
    ],
)
def test_what_is_not_ranked(change, reason):
    verdict = judge(replace(side(samples=series(10)), **change), side(samples=series(100)))
    assert (verdict.word, verdict.reason) == ("unclear", reason)


def test_series_is_the_slowest_rank_in_order_of_time():
    rows = [("a", rank, i, 0, 10.0 * i + rank) for i in (2, 0, 1) for rank in (1, 0)] + [("a", 0, 0, 1, None)]
    frame = pd.DataFrame(rows, columns=["cell_id", "rank", "iteration", "repeat", "us"])
    assert slowest_series(frame)["a"].us.tolist() == [1.0, 11.0, 21.0]


def test_interval_of_equal_constants_is_a_point():
    flat = [Series(us=np.full(6, us), repeat=np.arange(6) % 2) for us in (3.0, 2.0)]
    assert ratio_interval(*flat) == pytest.approx((1.5, 1.5))
