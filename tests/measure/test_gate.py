"""The correctness gate bites."""

import math

import pytest
import torch

from workbench.measure.gate import deviation, error_limit


def test_exact_results_have_no_error():
    x = torch.randn(8, 16)
    result = deviation(x, x)
    assert result.rel_error == 0
    assert result.sqnr_db is None


def test_one_bad_row_is_named_however_many_are_right():
    expected = torch.randn(256, 64)
    actual = expected.clone()
    actual[77] = expected[78]
    result = deviation(actual, expected)
    assert result.worst_row_index == 77
    assert result.worst_row > 0.5
    assert result.rel_error < 0.2


def test_non_finite_values_never_pass():
    expected = torch.ones(4, 4)
    actual = expected.clone()
    actual[2, 1] = math.nan
    result = deviation(actual, expected)
    assert result.rel_error == math.inf
    assert result.worst_row_index == 2


def test_zero_tokens_pass_and_wrong_shapes_do_not():
    assert deviation(torch.empty(0, 8), torch.empty(0, 8)).rel_error == 0
    with pytest.raises(ValueError, match="shape"):
        deviation(torch.ones(2, 3), torch.ones(3, 2))


def test_sqnr_is_the_error_in_decibels():
    expected = torch.ones(10, 10)
    assert deviation(expected * 1.01, expected).sqnr_db == pytest.approx(40, abs=0.01)


def test_limit_orders_the_formats():
    bf16, fp8, fp4 = (error_limit(weights=w, activations=a) for w, a in [(0, 0), (0.03, 0.03), (0.12, 0.0)])
    assert bf16 < fp8 < fp4 < 1
