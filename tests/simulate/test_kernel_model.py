"""The physical model of a kernel family, its fit, and what it must obey."""

from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.simulate.estimate import Estimator
from workbench.simulate.families import all_families
from workbench.simulate.fitting import FEWEST_ROWS, fit, take
from workbench.simulate.kernel_model import Constants, from_list, layer_us, least_us, peaks_of, to_list, work_of
from workbench.spec.catalog import load_hardware
from workbench.spec.precision import PRECISIONS

BF16 = PRECISIONS["bf16"]
PEAKS = peaks_of(load_hardware("h200-sxm"), BF16)
KNOWN = Constants(20.0, 1.2, 1.9, 2.0, 1.0, 0.3, 0.2, 64)


def work(pairs, touched, others=0.0, *, precision=BF16, hidden=4096, intermediate=1536):
    return work_of(precision, hidden=hidden, intermediate=intermediate, pairs=pairs, touched=touched, others=others)


def test_bytes_and_flops_of_the_work_are_the_hand_count():
    """One expert of DeepSeek-V3 holds 3 * 7168 * 2048 weights; bf16 is two bytes, MXFP4 17/32 of one."""
    wide = work(8.0, 4.0, hidden=7168, intermediate=2048)
    assert wide.weight_bytes == 2 * 3 * 7168 * 2048
    assert wide.pair_flops == 6 * 7168 * 2048
    narrow = work(8.0, 4.0, precision=PRECISIONS["mxfp4_w4a16"], hidden=7168, intermediate=2048)
    assert narrow.weight_bytes == 3 * 7168 * 2048 * 17 // 32
    assert least_us(wide, PEAKS)[0] == pytest.approx(4 * wide.weight_bytes / 4.8e6)


def test_fit_finds_the_constants_that_made_the_times():
    rng = np.random.default_rng(0)
    pairs = np.exp(rng.uniform(0, 11, 200))
    touched = np.minimum(pairs, rng.choice([8.0, 32.0, 128.0], 200))
    some = work(pairs, touched, pairs * rng.choice([0.0, 3.0], 200))
    us = layer_us(KNOWN, some, PEAKS)
    found = fit(some, PEAKS, us)
    assert np.abs(layer_us(found, some, PEAKS) / us - 1).max() < 0.05
    wrong = fit(some, PEAKS, us[::-1])
    assert np.abs(layer_us(wrong, some, PEAKS) / us - 1).mean() > 0.5


def test_too_few_rows_are_refused_unless_they_are_like_others():
    few = work(np.array([8.0, 64.0, 512.0]), np.array([8.0, 32.0, 32.0]))
    us = 2 * layer_us(KNOWN, few, PEAKS)
    with pytest.raises(ValueError, match=f"3 rows are too few .* {FEWEST_ROWS} are needed"):
        fit(few, PEAKS, us)
    assert np.abs(layer_us(fit(few, PEAKS, us, like=KNOWN), few, PEAKS) / us - 1).max() < 0.25


def test_floats_and_arrays_go_through_the_same_lines():
    pairs, touched = np.array([1.0, 100.0, 9000.0]), np.array([1.0, 12.0, 128.0])
    many = layer_us(KNOWN, work(pairs, touched), PEAKS)
    assert [layer_us(KNOWN, work(*pair), PEAKS) for pair in zip(pairs, touched, strict=True)] == pytest.approx(many)
    assert layer_us(KNOWN, take(work(pairs, touched), np.array([2])), PEAKS) == pytest.approx(many[2])


def test_constants_survive_a_file():
    assert from_list(to_list(KNOWN)) == KNOWN


@given(
    st.sampled_from(range(len(all_families()))), st.floats(1, 1e5), st.integers(1, 256), st.floats(1.0, 4.0),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_more_work_or_less_bandwidth_is_never_faster(index, pairs, touched, factor):
    constants = all_families()[index].constants
    one = work(max(pairs, float(touched)), float(touched))
    us = layer_us(constants, one, PEAKS)
    assert layer_us(constants, replace(one, pairs=one.pairs * factor), PEAKS) >= us * (1 - 1e-9)
    assert layer_us(constants, replace(one, others=1e4), PEAKS) >= us
    for name in ("bytes_per_us", "flops_per_us"):
        assert layer_us(constants, one, replace(PEAKS, **{name: factor * getattr(PEAKS, name)})) <= us * (1 + 1e-9)


@given(st.sampled_from(range(len(all_families()))), st.floats(0, 1e5), st.integers(0, 256))
@settings(max_examples=60, deadline=None)
def test_no_estimate_beats_the_peaks(index, pairs, touched):
    family = all_families()[index]
    precision = PRECISIONS[family.precision]
    peaks = peaks_of(load_hardware(family.hardware), precision)
    one = work(max(pairs, float(touched)) if touched else 0.0, float(touched), precision=precision)
    estimator = Estimator("calibrated", family, None, peaks, None, False, True, True)
    us = estimator.us(one, rows_per_expert=1.0)
    assert us >= max(least_us(one, peaks))
    assert (us == 0) == (touched == 0)
    array = replace(one, pairs=np.array([one.pairs]), touched=np.array([one.touched]))
    assert estimator.us(array, rows_per_expert=1.0) == pytest.approx([us])


def test_an_estimate_takes_microseconds():
    """At most 20 us at the best of several rounds, so that a busy machine does not decide."""
    one = work(100.0, 12.0)

    def round_us():
        start = perf_counter()
        for _ in range(200):
            layer_us(KNOWN, one, PEAKS)
        return (perf_counter() - start) / 200 * 1e6

    assert min(round_us() for _ in range(5)) <= 20
