"""Bare exchanges on real ranks: every strategy, wire format and skew brings every byte, and every gate bites."""

import numpy as np
import pytest
import torch

from tests.run.rank_gang import cell, run_gang
from workbench.comm.bare import bare_plan, bare_rows
from workbench.comm.payload import encode_rows
from workbench.comm.plan import byte_counts
from workbench.comm.strategies import STRATEGIES
from workbench.run.bare_exchange import row_source
from workbench.run.context import open_context
from workbench.run.measured import merge_reports, run_rank
from workbench.spec.scenario import AllToAllScope, LayerScope

SIZE = 65536
HOT = {"kind": "hot_rank", "factor": 4, "rank": 1}
SENDING = [name for name in STRATEGIES if name != "none"]


def bare(strategy="flat", *, size: int = SIZE, ranks: int = 4, dtype="bf16", skew="uniform"):
    scope = AllToAllScope(kind="all_to_all", bytes_per_rank=size)
    return cell(ranks=ranks, strategy=strategy, dtype=dtype, skew=skew, scope=scope)


GOOD = [
    *(bare(name) for name in SENDING),
    *(bare(name, skew=HOT) for name in SENDING),
    *(bare(name, skew=HOT, dtype=dtype) for name in ("flat", "node_dedup", "bruck")
      for dtype in ("fp8_block", "mxfp8", "nvfp4")),
    bare("two_dh", skew={"kind": "power_law", "alpha": 1.2}, dtype="nvfp4"),
    bare("flat", skew={"kind": "cold_rank", "rank": 3}),
    bare("flat", size=1001),
]  # fmt: skip
FAULTS = [
    (bare("flat"), "carry", "rank 2: row 2 of the block of rank 3 arrived wrong"),
    (bare("flat", dtype="nvfp4"), "carry", "rank 2: row 2 of the block of rank 3 arrived wrong"),
    (bare("two_dh"), "carry", "rank 2: row"),
    (bare("flat", skew="power_law"), "plan", "rank 1: its routing is not that of ranks [0, 2, 3]"),
    (
        bare("flat"),
        "count",
        "rank 3: one pass sent what the plan does not say: 16384 bytes counted on scale_out, 32768",
    ),
    (cell(), "count", "rank 3: one pass sent what the plan does not say"),
    (cell(strategy="node_dedup"), "counts", "row counts"),
    (cell(), "routing", "rank 2: its routing is not that of ranks [0, 1, 3]"),
    (cell(scope=LayerScope(kind="train_step")), "routing", "rank 2: its routing is not that of ranks [0, 1, 3]"),
    (cell(scope=LayerScope(kind="train_step")), "count", "rank 3: one pass sent what the plan does not say"),
]
LAYERS = [cell(), cell(strategy="node_dedup", dtype="fp8_block"), cell(strategy="two_dh", overlap="two_batch"),
          cell(scope=LayerScope(kind="train_step"), strategy="node_dedup")]  # fmt: skip


@pytest.fixture(scope="module")
def gang():
    """Faults first: the gang must outlive them."""
    cells = [*((one, fault) for one, fault, _ in FAULTS), *((one, None) for one in [*GOOD, *LAYERS])]
    return list(zip([one for one, _ in cells], run_gang(cells), strict=True))


@pytest.fixture(scope="module")
def records(gang):
    return [(one, merge_reports(one, reports)) for one, reports in gang[len(FAULTS) :]]


@pytest.mark.parametrize("index", range(len(FAULTS)))
def test_a_fault_of_one_rank_fails_the_cell_and_names_it(gang, index):
    record = merge_reports(*gang[index]).record
    assert record.status == "error"
    assert FAULTS[index][2] in record.reason


def test_every_strategy_sends_what_its_plan_says(records):
    for one, outcome in records[: len(GOOD)]:
        record, (plan, row_bytes) = outcome.record, bare_plan(one)
        assert record.status == "ok", f"{one.dispatch.strategy}: {record.reason}"
        rows = bare_rows(one)
        counts = byte_counts(plan, payload_bytes=rows.payload_bytes, row_bytes=row_bytes)
        assert (record.scale_up_bytes, record.scale_out_bytes) == (counts.scale_up, counts.scale_out)
        assert (record.wire_bytes, record.physical_bytes) == (counts.wire, counts.physical)
        assert record.logical_bytes == 4 * rows.num_rows * rows.payload_bytes


def test_encoding_stands_apart(records):
    for one, outcome in records[: len(GOOD)]:
        encoded = one.dispatch.dispatch_dtype != "bf16"
        assert (outcome.record.quantise_us > 0) == encoded
        assert outcome.record.dispatch_us > 0
        assert outcome.record.count_exchange_us == 0


def test_flat_of_even_blocks_is_what_nccl_tests_measures(records):
    record = records[SENDING.index("flat")][1].record
    assert record.algbw_gb_per_s == pytest.approx(SIZE / record.latency_us / 1e3)
    assert record.busbw_gb_per_s == pytest.approx(record.algbw_gb_per_s * 3 / 4)
    assert (record.logical_bytes, record.wire_bytes) == (4 * SIZE, 3 * SIZE)


def test_under_skew_the_bandwidth_is_that_of_the_heaviest_rank(records):
    """Hot by 4 of 4 ranks: 4/7 of every buffer goes to it, and its 4 * 4/7 of a buffer is what the time carries."""
    record = records[len(SENDING) + SENDING.index("flat")][1].record
    assert record.algbw_gb_per_s == pytest.approx(16 / 7 * SIZE / record.latency_us / 1e3, rel=0.02)
    assert record.skew == "hot_rank(4, 1)"


def test_legs_stand_apart_by_link(records):
    by_strategy = {one.dispatch.strategy: outcome for one, outcome in records[: len(SENDING)]}
    assert by_strategy["flat"].record.scale_up_us is None, "one hop that crosses nodes is one leg"
    assert by_strategy["flat"].record.scale_out_us > 0
    for name in ("two_dh", "node_dedup", "balanced_stages"):
        assert by_strategy[name].record.scale_up_us > 0
        assert by_strategy[name].record.scale_out_us > 0
    links = {row["link"]: row for row in by_strategy["node_dedup"].tables["links"]}
    across = links["dispatch.scale_out/scale_out/out/rank 0"]
    assert across["bytes"] == SIZE // 2
    assert across["busy_us"] > 0
    assert links["layer/scale_out/out/rank 0"]["bytes"] == SIZE // 2


def test_layers_have_legs_bandwidth_and_every_kind_of_bytes(records):
    for one, outcome in records[len(GOOD) :]:
        record = outcome.record
        assert record.status == "ok", record.reason
        assert 0 < record.physical_bytes < record.wire_bytes
        assert record.scale_out_us > 0
        assert (record.scale_up_us is None) == (one.dispatch.strategy == "flat")
        assert 0 < record.busbw_gb_per_s == pytest.approx(record.algbw_gb_per_s * 3 / 4)
        sent = sum(row["bytes"] for row in outcome.tables["links"] if not row["link"].startswith("layer/"))
        assert sent == record.wire_bytes, "legs carry what a pass sends"


def test_the_latency_is_by_the_clock_that_the_timer_names(records):
    for _, outcome in records:
        record = outcome.record
        assert record.timer == "wall"
        assert record.wall_us == record.latency_us
        assert record.event_us is record.kernel_us is None


def test_one_rank_copies_and_has_no_bandwidth():
    alone = open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)
    one = bare(ranks=1)
    report = run_rank(one, alone)
    record = merge_reports(one, [report]).record
    assert record.status == "ok", record.reason
    assert record.wire_bytes == 0
    assert record.algbw_gb_per_s is record.busbw_gb_per_s is None


@pytest.mark.parametrize("dtype", ["bf16", "fp8_block"])
def test_rows_are_the_same_on_every_rank_and_all_different(dtype):
    rows = bare_rows(bare(size=4096, dtype=dtype, skew=HOT))
    ranks, numbers = np.repeat(np.arange(4), rows.num_rows), np.tile(np.arange(rows.num_rows), 4)
    made, again = (row_source(rows, num_ranks=4, seed=3)(ranks, numbers) for _ in range(2))
    assert torch.equal(made, again)
    assert len({bytes(row.view(torch.uint8).numpy()) for row in made}) == 4 * rows.num_rows
    assert not torch.equal(made, row_source(rows, num_ranks=4, seed=4)(ranks, numbers))
    if rows.is_encoded:
        assert encode_rows(made, dtype).shape[1] == rows.row_bytes
