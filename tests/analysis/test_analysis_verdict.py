"""Verdicts: what they may say and when they must not."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from workbench.analysis.statistics import Series, own_spread, ratio_interval, slowest_series
from workbench.analysis.verdict import Side, judge


def series(median, *, noise=0.01, number=60, seed=0, repeats=1, drift=0.0):
    rng = np.random.default_rng(seed)
    us = median * (1 + noise * rng.standard_normal(number)) * np.linspace(1, 1 + drift, number)
    return Series(us=us, repeat=np.repeat(np.arange(repeats), -(-number // repeats))[:number])


def side(us=100.0, *, device="cuda", engine="measure", samples=None, interval=None, status="ok"):
    latency = float(np.median(samples.us)) if samples else us
    return Side(status=status, engine=engine, device=device, latency_us=latency, interval_us=interval, series=samples)


def words(candidate, baseline):
    return judge(candidate, baseline).word


def test_clear_differences_on_a_gpu():
    base = side(samples=series(100))
    assert words(side(samples=series(80, seed=1)), base) == "faster"
    assert words(side(samples=series(110, seed=1)), base) == "slower"
    assert words(side(samples=series(100, seed=1)), base) == "same"
    verdict = judge(side(samples=series(80, seed=1)), base)
    assert verdict.ratio_low < verdict.ratio < verdict.ratio_high < 0.85
    assert verdict.method == "samples"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_cell_against_itself_is_never_faster_or_slower(device):
    for seed in range(40):
        first = side(device=device, samples=series(100, noise=0.05, seed=2 * seed, number=30))
        second = side(device=device, samples=series(100, noise=0.05, seed=2 * seed + 1, number=30))
        assert words(first, second) in ("same", "unclear")


def test_one_launch_on_a_cpu_tells_only_large_differences():
    base = side(device="cpu", samples=series(100))
    verdict = judge(side(device="cpu", samples=series(94, seed=1)), base)
    assert verdict.word == "unclear"
    assert "one run on a noisy cpu: here a difference counts beyond 10%" in verdict.reason
    assert words(side(device="cpu", samples=series(100, seed=1)), base) == "unclear"
    assert words(side(device="cpu", samples=series(60, seed=1)), base) == "faster"
    several = side(device="cpu", samples=series(94, seed=1, repeats=3))
    assert words(several, side(device="cpu", samples=series(100, repeats=3))) == "faster"


def test_drift_within_a_cell_raises_what_it_takes():
    drifting = side(samples=series(100, drift=0.3))
    assert own_spread(drifting.series) > 0.1
    assert words(side(samples=series(108, seed=1)), drifting) == "unclear"
    assert words(side(samples=series(200, seed=1)), drifting) == "slower"


def test_few_samples_are_unclear():
    verdict = judge(side(samples=series(50, number=4)), side(samples=series(100, number=4)))
    assert (verdict.word, verdict.reason) == ("unclear", "only 4 samples, 5 are needed")


def test_simulated_cells_are_judged_by_value():
    base = side(100.0, engine="simulate")
    assert words(side(97.0, engine="simulate"), base) == "faster"
    assert words(side(101.0, engine="simulate"), base) == "same"
    assert words(side(103.0, engine="simulate"), base) == "slower"
    assert judge(side(97.0, engine="simulate"), base).method == "value"


def test_intervals_judge_where_samples_are_missing():
    base = side(100.0, interval=(98.0, 102.0))
    assert words(side(80.0, interval=(79.0, 81.0)), base) == "faster"
    assert words(side(99.0, interval=(96.0, 101.0)), base) == "unclear"
    assert words(side(80.0), base) == "unclear"
    assert words(side(101.5, interval=(101.4, 101.6)), side(100.0, interval=(99.9, 100.1))) == "same"


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
    assert ratio_interval(np.full(5, 3.0), np.full(5, 2.0)) == (1.5, 1.5)
