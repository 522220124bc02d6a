"""Nothing is predicted from what it is compared with: a held-out time may be anything, and its prediction stays."""

import numpy as np
import pytest

from workbench.run.fit_constants import band, band_of_splits, published_rows
from workbench.run.held_out import by_fold, by_shape, by_token, families, fitted, rows_of, transferred
from workbench.run.validation.lines import band_of_others, line, with_band
from workbench.simulate.families import all_families
from workbench.simulate.kernel_model import to_list

SOURCE = "vllm_fp8moe_triton_tritonexperts"
BROKEN = 50.0


def small(hardware=("h200-sxm",)):
    frame = published_rows().frame
    return rows_of(frame[frame["source"].eq(SOURCE) & frame["hardware"].isin(hardware)])


def broken(rows, mask):
    frame = rows.frame.copy()
    frame.loc[mask, "us"] *= BROKEN
    return rows_of(frame)


@pytest.mark.parametrize("method", [by_fold, by_shape, by_token])
def test_a_prediction_does_not_depend_on_the_times_left_out_with_it(method):
    rows = small()
    before = method(rows)
    split = sorted(before["split"].unique())[1]
    mine = before.index[before["split"] == split]
    held = rows.frame.index.isin(mine)
    if method is by_token:
        held = rows.frame["tokens"].astype(str).eq(split).to_numpy()
    after = method(broken(rows, held))
    same = after.loc[mine, "predicted_us"].to_numpy(), before.loc[mine, "predicted_us"].to_numpy()
    np.testing.assert_allclose(*same, rtol=1e-6)
    others = before.index.difference(mine)
    assert not np.allclose(after.loc[others, "predicted_us"], before.loc[others, "predicted_us"], rtol=1e-3)


def test_every_row_is_left_out_once():
    rows = small()
    assert sorted(by_fold(rows).index) == list(rows.frame.index)
    assert sorted(by_shape(rows).index) == list(rows.frame.index)
    assert by_token(rows).index.is_unique


def test_a_transfer_never_reads_the_target():
    rows = small(("h200-sxm", "h100-sxm"))
    before = transferred(rows, "h200-sxm", "h100-sxm")
    after = transferred(broken(rows, rows.frame["hardware"].eq("h100-sxm")), "h200-sxm", "h100-sxm")
    assert len(before) > 150
    np.testing.assert_allclose(after["predicted_us"], before["predicted_us"])
    ratio = before["predicted_us"] / before["copied_us"]
    assert ratio.between(1.0, 4.8 / 3.35 + 1e-6).all(), "the slower memory costs at most its ratio"


def test_left_out_errors_are_those_of_the_whole_table_or_less():
    """One family of good measurements; `validate` has the figures of all."""
    tokens = by_token(small())
    inside = tokens[~tokens["is_end"]]
    assert (inside["predicted_us"] / inside["us"] - 1).abs().mean() < 0.065
    folds = by_fold(small())
    assert (folds["predicted_us"] / folds["us"] - 1).abs().mean() < 0.14


def test_the_stored_constants_are_what_the_command_would_write():
    rows = small()
    ((family, at),) = families(rows).items()
    stored = next(one for one in all_families() if (one.hardware, one.source) == (family[0], family[3]))
    assert to_list(fitted(rows, at)) == pytest.approx(to_list(stored.constants), rel=0.02)
    assert stored.band == pytest.approx(band(1 / (by_fold(rows).eval("predicted_us / us"))), rel=0.02)


def test_stored_constants_describe_every_row_of_the_tables():
    """Not held out: only that the file belongs to these tables. `validate` holds out."""
    rows, families_by_key = published_rows(), {}
    for one in all_families():
        families_by_key[one.hardware, one.kernel, one.version, one.source, one.dtype] = one
    off, inside = [], []
    for key, at in families(rows).items():
        stored, mine = families_by_key[key], rows.take(at)
        ratio = mine.us / mine.modelled_us(stored.constants)
        off.append(np.abs(1 / ratio - 1))
        inside.append((ratio >= stored.band[0]) & (ratio <= stored.band[1]))
    assert len(np.concatenate(off)) > 18_000
    assert np.concatenate(off).mean() < 0.13
    assert 0.75 < np.concatenate(inside).mean() < 0.90


def test_few_groups_have_the_widest_of_their_bands():
    frame = small().frame.head(40).assign(predicted_us=1.0, us=np.linspace(1, 2, 40))
    two = frame.assign(split=["a"] * 20 + ["b"] * 20)
    low, high = band_of_splits(two)
    assert (low, high) == (band(two["us"][:20])[0], band(two["us"][20:])[1])
    many = frame.assign(split=np.arange(40) % 20)
    assert band_of_splits(many) == band(many["us"])


def test_bands_come_from_other_rows_than_those_they_judge():
    """A split that is all wrong moves every band but its own."""
    frame = by_fold(small())
    wrong = frame["split"].eq("2")
    moved = frame.assign(us=frame["us"].where(~wrong, frame["us"] * BROKEN))
    before, after = band_of_others(frame), band_of_others(moved)
    same = np.isclose(after["band_high_us"], before["band_high_us"])
    assert same[before["split"].eq("2")].all()
    assert not same[before["split"].ne("2")].any()


def test_a_line_says_whether_its_goal_holds():
    frame = small().frame.assign(predicted_us=lambda rows: 1.1 * rows["us"], split="a")
    frame = with_band(frame, 0.9, 1.0)
    known = {"section": "s", "method": "m", "split": "a"}
    fair = line(frame, goals={"mape": 12.0, "coverage": (75, 100)}, **known)
    assert (fair.goal, fair.met, fair.coverage) == ("MAPE <= 12%; coverage 75 to 100%", True, 100.0)
    assert fair.mape == pytest.approx(10)
    assert line(frame, goals={"mape": 9.0}, **known).met is False
    assert line(frame, goals={"coverage": (75, 90)}, **known).met is False
