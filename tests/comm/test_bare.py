"""The bare exchange: blocks by skew, bytes by strategy, and what cannot be had."""

import numpy as np
import pytest

from tests.workload.factory import make_cell
from workbench.comm.bare import bare_plan, bare_rows, rank_shares
from workbench.comm.oracle import origins
from workbench.comm.payload import encoded_bytes
from workbench.comm.strategies import STRATEGIES
from workbench.spec.dispatch import Dispatch
from workbench.spec.errors import Unsupported

SENDING = [name for name in STRATEGIES if name != "none"]


def bare(size: int, *, ranks: int = 4, gpus_per_node: int = 2, strategy="flat", dtype="bf16", skew="uniform"):
    scope, dispatch = {"kind": "all_to_all", "bytes_per_rank": size}, Dispatch(strategy=strategy, dispatch_dtype=dtype)
    return make_cell(ranks=ranks, gpus_per_node=gpus_per_node, scope=scope, dispatch=dispatch, skew=skew)


def wire(plan, row_bytes: int) -> np.ndarray:
    """Bytes from row to column over all hops, [R, R], what stays left out."""
    total = sum(sent for _, sent, _ in plan.traffic(row_bytes))
    return total * ~np.eye(plan.num_ranks, dtype=bool)


def test_flat_sends_equal_blocks_in_one_message_each():
    plan, block = bare_plan(bare(4096))
    assert block == 1024
    ((_, sent, messages),) = plan.traffic(block)
    assert (sent == 1024).all()
    assert messages.sum() == 12
    assert plan.carried is None
    assert plan.hops[0].announced


def test_a_buffer_that_does_not_divide_is_cut_down_to_whole_bytes():
    plan, block = bare_plan(bare(1000, ranks=3, gpus_per_node=3))
    assert block == 333
    assert plan.traffic(block)[0][1].sum() == 9 * 333


@pytest.mark.parametrize("strategy", SENDING)
@pytest.mark.parametrize("skew", ["uniform", {"kind": "hot_rank", "factor": 4, "rank": 2}])
def test_every_strategy_brings_every_block_to_its_rank(strategy, skew):
    """Each rank ends with the rows meant for it, from every rank, whatever else it came by."""
    one = bare(2**16, strategy=strategy, skew=skew)
    plan, _ = bare_plan(one)
    blocks_R = bare_rows(one).blocks_R
    ends_R = np.cumsum(blocks_R)
    for rank in range(4):
        source, token, _ = origins(plan, rank)
        for peer in range(4):
            mine = np.sort(token[(source == peer) & (token >= ends_R[rank] - blocks_R[rank]) & (token < ends_R[rank])])
            assert mine.tolist() == list(range(ends_R[rank] - blocks_R[rank], ends_R[rank])), (rank, peer)


@pytest.mark.parametrize(
    ("strategy", "times"),
    [("flat", 1), ("pairwise", 1), ("packed", 1), ("low_latency", 1), ("flat_padded", 1), ("balanced_stages", 4 / 3),
     ("allgather_reduce_scatter", 4), ("bruck", 4 / 3), ("two_dh", 4 / 3), ("node_dedup", 4 / 3),
     ("multilevel_dedup", 4 / 3)],
)  # fmt: skip
def test_bytes_that_leave_a_rank_are_those_of_the_algorithm(strategy, times):
    """Of S = 64 KiB, 3/4 leave straight; Bruck moves S/2 * log2(4), two steps inside and between nodes S/2 each; a
    gather everything to everyone."""
    plan, row_bytes = bare_plan(bare(2**16, strategy=strategy))
    assert (wire(plan, row_bytes).sum(axis=1) == 2**16 * 3 / 4 * times).all()


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("size", [2**16, 2**20, 2**26])
def test_a_hot_rank_gets_its_factor_and_totals_are_kept(factor, size):
    plan, row_bytes = bare_plan(bare(size, skew={"kind": "hot_rank", "factor": factor, "rank": 1}))
    ((_, sent, _),) = plan.traffic(row_bytes)
    assert (sent.sum(axis=1) == size).all()
    assert (sent == sent[0]).all()
    assert sent[0, 1] / np.delete(sent[0], 1).mean() == pytest.approx(factor, rel=0.05)


def test_power_law_blocks_follow_the_loads_of_as_many_experts_as_ranks():
    one = bare(2**24, ranks=16, gpus_per_node=8, skew={"kind": "power_law", "alpha": 1.2})
    plan, row_bytes = bare_plan(one)
    sent_R = plan.traffic(row_bytes)[0][1][3]
    assert sent_R.sum() == 2**24
    assert sent_R / 2**24 == pytest.approx(rank_shares(one), abs=1 / 4096)
    assert sent_R.max() > 2 * sent_R.mean()


def test_cold_rank_gets_nothing():
    ((_, sent, _),) = bare_plan(bare(2**16, skew={"kind": "cold_rank", "rank": 3}))[0].traffic(1)
    assert (sent[:, 3] == 0).all()
    assert (sent[:, :3] > 0).all()


@pytest.mark.parametrize("dtype", ["fp8_block", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("skew", ["uniform", {"kind": "hot_rank"}])
def test_encoded_rows_hold_the_same_numbers_in_fewer_bytes(dtype, skew):
    plain, encoded = bare_plan(bare(2**20, skew=skew)), bare_plan(bare(2**20, skew=skew, dtype=dtype))
    assert (plain[0].hops[0].send_counts == encoded[0].hops[0].send_counts).all()
    assert encoded[1] == encoded_bytes(plain[1] // 2, dtype)
    assert 0.25 < encoded[1] / plain[1] < 0.54


def test_low_latency_sends_tokens_and_its_buffers_have_an_end():
    plan, row_bytes = bare_plan(bare(2**20, strategy="low_latency"))
    assert row_bytes == 2**14
    assert plan.hops[0].messages().sum() == 4 * 48
    with pytest.raises(Unsupported, match=r"511 tokens a rank, and scope\.bytes_per_rank 16777216 is 1024 of 16384"):
        bare_plan(bare(2**24, strategy="low_latency"))


def test_padding_travels_where_blocks_are_uneven():
    one = {"skew": {"kind": "hot_rank", "factor": 4, "rank": 0}}
    flat, padded = (bare_plan(bare(2**16, strategy=name, **one)) for name in ("flat", "flat_padded"))
    hot = flat[0].hops[0].send_counts.max()
    assert (padded[0].hops[0].send_counts == hot).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": "none"}, "none sends nothing"),
        ({"size": 3}, "3 bytes give 4 ranks less than one each"),
        ({"size": 4, "dtype": "nvfp4"}, "less than one bf16 number"),
        ({"skew": "topics"}, "topics speaks of tokens or experts"),
        ({"skew": {"kind": "hot_rank", "rank": 9}}, "9 is not among the 4 ranks"),
    ],
)
def test_what_has_no_bare_exchange_says_why(change, message):
    with pytest.raises(Unsupported, match=message):
        bare_plan(bare(**({"size": 4096} | change)))


def test_512_ranks_are_planned_in_a_moment():
    plan, _ = bare_plan(bare(2**26, ranks=512, gpus_per_node=8, skew={"kind": "power_law"}))
    assert plan.hops[0].send_counts.sum() == 512 * 1024
