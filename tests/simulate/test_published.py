"""The published tables that the package carries."""

import pytest

from workbench.simulate.published import published

ROWS = {
    "moe_layer": 18984, "moe_wide_ep": 3239, "moe_stages": 2732, "a2a_deepep": 2206, "a2a_moe_backends": 2100,
    "nccl_intranode": 1008, "comm_published": 186, "e2e_serving": 2186,
}  # fmt: skip


@pytest.mark.parametrize(("table", "rows"), ROWS.items())
def test_a_published_table_is_whole(table, rows):
    assert len(published(table)) == rows


def test_columns_keep_their_types_and_those_of_other_tables_stay_away():
    frame = published("moe_layer")
    assert frame["num_tokens"].dtype.kind == "i"
    assert frame["latency_ms"].gt(0).all()
    assert "ttft_ms" not in frame


def test_an_unknown_table_is_refused():
    with pytest.raises(ValueError, match="no published table is called moe"):
        published("moe")
