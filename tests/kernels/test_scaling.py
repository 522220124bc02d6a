"""Scales of a training step: current and delayed, and what a history does with zeros, overflow and absent rows."""

import pytest
import torch

from kernels.formats import FORMATS
from kernels.scaling import AmaxHistory, Scaling, amax_of, encode_delayed, new_history

E4M3_MAX, E5M2_MAX = 448.0, 57344.0


def test_scale_is_the_largest_of_the_past_or_its_own_first_amax():
    history = AmaxHistory(torch.tensor([2.0, 8.0, 0.0]))
    assert history.scale(4.0, otherwise=torch.tensor(6.0)) == 2.0
    assert new_history(3).scale(4.0, otherwise=torch.tensor(6.0)) == 1.5


def test_the_oldest_step_leaves_the_history():
    history = new_history(2)
    x = torch.ones(2, 2)
    scales = [float(encode_delayed(x * value, history, format="e4m3_tensor").scale) for value in (8, 1, 2, 4)]
    assert scales == pytest.approx([8 / E4M3_MAX, 8 / E4M3_MAX, 8 / E4M3_MAX, 2 / E4M3_MAX])
    assert history.amaxes.tolist() == [4.0, 2.0]


def test_growth_saturates_or_overflows_as_asked():
    for overflow, expected in (("saturate", 1.0), ("nan", float("inf"))):
        history = new_history(4)
        encode_delayed(torch.ones(1, 2), history, format="e5m2_tensor")
        grown = encode_delayed(torch.full((1, 2), 3.0), history, format="e5m2_tensor", overflow=overflow)
        assert FORMATS["e5m2_tensor"].decode(grown).flatten().tolist() == [expected] * 2
        again = encode_delayed(torch.full((1, 2), 3.0), history, format="e5m2_tensor", overflow=overflow)
        assert FORMATS["e5m2_tensor"].decode(again).flatten().tolist() == pytest.approx([3.0] * 2)


def test_values_that_are_not_finite_and_steps_without_rows_leave_the_scale():
    history = new_history(4)
    x = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")]])
    assert amax_of(x) == 2.0
    encode_delayed(x, history, format="e4m3_tensor")
    empty = encode_delayed(torch.empty(0, 2), history, format="e4m3_tensor")
    assert empty.data.shape == (0, 2)
    assert encode_delayed(torch.ones(1, 2), history, format="e4m3_tensor").scale == 2 / E4M3_MAX
    idle = encode_delayed(torch.zeros(3, 2), new_history(1), format="e4m3_tensor")
    assert not FORMATS["e4m3_tensor"].decode(idle).any()


def test_a_stack_has_a_scale_for_each_matrix():
    scaling = Scaling("delayed", 3)
    w = torch.tensor([1.0, 100.0]).view(2, 1, 1) * torch.ones(2, 3, 4)
    encoded = scaling.encode(w, name="w", format="e4m3_tensor", weights=True)
    assert encoded.scale.tolist() == pytest.approx([1 / E4M3_MAX, 100 / E4M3_MAX])
    assert torch.equal(FORMATS["e4m3_tensor"].decode(encoded), w)
    assert scaling.histories["w"].amaxes.shape == (3, 2)


def test_with_steady_data_delayed_equals_current():
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0)).bfloat16()
    delayed, current = Scaling("delayed"), Scaling()
    for format in ("e4m3_tensor", "e5m2_tensor"):
        expected = current.encode(x, name="x", format=format)
        for _ in range(2):
            got = delayed.encode(x, name=format, format=format)
            assert torch.equal(got.data, expected.data)
            assert torch.equal(got.scale, expected.scale)
    assert not current.histories


def test_current_scaling_takes_a_rule_only_where_the_format_has_it():
    x = torch.full((1, 2), 3.0)
    assert Scaling().encode(x, name="x", format="e5m2_tensor", scale_rule="ceil").scale == 2.0**-14
    assert Scaling().encode(x, name="x", format="e5m2_tensor", scale_rule="floor").scale == pytest.approx(3 / E5M2_MAX)


def test_bad_requests_name_the_field():
    with pytest.raises(ValueError, match="scaling: 'later' is unknown"):
        Scaling("later")
    with pytest.raises(ValueError, match="amax_history: 0 steps"):
        new_history(0)
    with pytest.raises(ValueError, match="not e4m3_block"):
        encode_delayed(torch.ones(1, 2), new_history(1), format="e4m3_block")
