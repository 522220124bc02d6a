"""The statistics against their textbook values, and the error rates they promise on recorded samples."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import bootstrap, ttest_ind

from workbench.analysis.compare import RunTables, compare_runs
from workbench.analysis.statistics import (
    Noise,
    Series,
    contrast,
    false_discovery,
    noise_floor,
    pooled_noise,
    ratio_interval,
)
from workbench.spec.catalog import reference_dir
from workbench.store.reader import read_table
from workbench.store.run_folder import list_runs, open_run


def repeated(rng, *, repeats=3, scatter=0.01, number=30, median=100.0):
    medians = median * np.exp(scatter * rng.standard_normal(repeats))
    us = (medians[:, None] * (1 + 0.002 * rng.standard_normal((repeats, number)))).ravel()
    return Series(us=us, repeat=np.repeat(np.arange(repeats), number))


def test_false_discovery_rates_by_hand():
    assert false_discovery([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])
    assert len(false_discovery([])) == 0


def test_false_discoveries_stay_below_their_share():
    """100 true among 1000: the called ones hold at most 5% false, and most of the true."""
    rng = np.random.default_rng(0)
    p = np.concatenate([rng.uniform(size=900), rng.uniform(size=100) * 1e-5])
    called = false_discovery(p) <= 0.05
    assert called[900:].mean() > 0.95
    assert called[:900].sum() / called.sum() <= 0.08


def test_contrast_without_a_pool_is_the_t_test():
    rng = np.random.default_rng(1)
    new, old = repeated(rng), repeated(rng, median=103.0)
    expected = ttest_ind(new.log_medians(), old.log_medians()).pvalue
    assert contrast(new, old, Noise()).p_value == pytest.approx(expected)


def test_the_pool_finds_how_repeats_scatter():
    rng = np.random.default_rng(2)
    alike = pooled_noise([repeated(rng, scatter=0.02) for _ in range(300)])
    assert np.sqrt(alike.variance) == pytest.approx(0.02, rel=0.1)
    assert alike.degrees > 20
    mixed = pooled_noise([repeated(rng, scatter=s) for s in rng.choice([0.002, 0.05], 300)])
    assert mixed.degrees < 4
    assert pooled_noise([repeated(rng) for _ in range(3)]) == Noise()


def test_the_bootstrap_of_one_repeat_is_the_plain_one():
    """Drawing the median's place at once gives the interval that drawing every sample gives."""
    rng = np.random.default_rng(3)
    new, old = (Series(us=100 * rng.lognormal(0, 0.2, 61), repeat=np.zeros(61, int)) for _ in range(2))
    plain = bootstrap(
        (new.us, old.us),
        lambda x, y, axis: np.median(x, axis=axis) / np.median(y, axis=axis),
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(4),
    ).confidence_interval
    assert ratio_interval(new, old) == pytest.approx((plain.low, plain.high), rel=0.02)


def test_repeats_widen_the_interval():
    rng = np.random.default_rng(5)
    still, wide = (repeated(rng, scatter=s) for s in (0.0, 0.05))
    assert np.ptp(ratio_interval(wide, still)) > 10 * np.ptp(ratio_interval(still, still))


def test_noise_floor_is_what_repeats_differ_by():
    rng = np.random.default_rng(6)
    floor = noise_floor({str(n): repeated(rng, scatter=0.02) for n in range(200)})
    assert floor == pytest.approx(np.expm1(1.96 * 0.02 * np.sqrt(2)), rel=0.15)
    assert np.isnan(noise_floor({"a": repeated(rng, repeats=1)}))


SCATTER = {"cuda": 0.008, "cpu": 0.16}
"""Of repeats around their mean: an H200's, and what keeps three of a cpu within 1.75x mostly."""


def recorded(device):
    """Cells and samples of the H200 as recorded, or with the device called a cpu."""
    runs = [open_run(reference_dir(), info.run_id) for info in list_runs(reference_dir())]
    run = max(runs, key=lambda run: len(read_table(run, "cells").frame))
    cells = read_table(run, "cells").frame
    return RunTables(cells=cells.assign(device=device), samples=read_table(run, "samples").frame)


def drawn(tables, *, device, seed, slower=()):
    """Three repeats: each cell's recorded samples drawn anew, each repeat off by what repeats differ by."""
    rng = np.random.default_rng(seed)
    cells = tables.cells.set_index("cell_id")
    parts = []
    for cell_id, rows in tables.samples.groupby("cell_id", sort=False):
        us = rows["us"].to_numpy(float)
        for repeat in range(3):
            factor = np.exp(SCATTER[device] * rng.standard_normal()) * (1.05 if cell_id in slower else 1.0)
            drawn_us = rng.choice(us, len(us)) * factor
            parts.append(pd.DataFrame({"cell_id": cell_id, "rank": 0, "iteration": range(len(us)),
                                       "repeat": repeat, "us": drawn_us}))  # fmt: skip
    assert set(slower) <= set(cells.index)
    return replace(tables, samples=pd.concat(parts))


def words(device, seed, slower=()):
    """Verdicts by cell of drawing ``2 * seed + 1`` against drawing ``2 * seed``."""
    tables = recorded(device)
    first = drawn(tables, device=device, seed=2 * seed)
    second = drawn(tables, device=device, seed=2 * seed + 1, slower=slower)
    frame = compare_runs(first, second).set_index("candidate_cell")
    return frame.loc[tables.samples["cell_id"].unique(), "verdict"]


def test_a_run_against_itself_raises_at_most_one_alarm_in_twenty():
    found = pd.concat([words("cuda", seed) for seed in range(2)])
    assert found.isin(["same", "unclear"]).mean() >= 0.95
    assert (found == "same").mean() > 0.1


def test_a_kernel_slower_by_five_percent_is_found_and_no_other():
    tables = recorded("cuda")
    measured = tables.cells[tables.cells["cell_id"].isin(tables.samples["cell_id"])]
    target = set(measured[measured["kernel"] == "torch"]["cell_id"])
    assert len(target) > 10
    found = words("cuda", 5, slower=target)
    planted = found.index.isin(target)
    assert (found[planted] == "slower").mean() >= 0.90
    assert (~found[~planted].isin(["same", "unclear"])).mean() <= 0.05


def test_on_a_cpu_a_run_against_itself_is_unclear():
    found = words("cpu", 7)
    assert set(found) == {"unclear"}
