"""What the rows of published tables computed, and which of them no part could have produced."""

import pytest

from workbench.simulate.published_moe import expected_load, moe_layers


@pytest.mark.parametrize(
    ("tokens", "ep", "pairs", "touched"),
    [(1, 1, 8, 8), (16, 1, 128, 128), (16, 8, 16, 16), (1024, 8, 1024, 32), (4096, 256, 128, 1)],
)
def test_balanced_rows_touch_as_many_experts_as_there_are_pairs(tokens, ep, pairs, touched):
    assert expected_load(tokens, 256, 8, ep, "balanced") == (pairs, touched)


def test_skewed_rows_touch_fewer_experts_and_load_the_busiest_gpu_more():
    pairs, touched = expected_load(128, 256, 8, 1, "power_law_1.2")
    assert pairs == 128 * 8
    assert touched < 256
    busiest, _ = expected_load(1024, 256, 8, 8, "power_law_1.2")
    assert 1024 < busiest < 8 * 1024
    assert expected_load(1024, 256, 8, 8, "power_law_1.2") == expected_load(1024, 256, 8, 8, "power_law_1.2")


def test_rows_above_the_peak_are_those_whose_router_touched_fewer_experts():
    """DeepSeek-V3 at EP 1 from vllm and sglang, 5.7 to 8.3 TB/s on a part of 4.8, is among them; few others are."""
    rows = moe_layers()
    aside = rows[rows["above_peak"]]
    assert 100 < len(aside) < 250
    h200 = aside[aside["hardware"].eq("h200-sxm")]
    assert set(h200["kernel"]) == {"vllm", "sglang"}
    assert set(h200["hidden"]) == {7168}
    assert set(h200["ep"]) == {1}
    assert set(h200["distribution"]) == {"balanced"}
