"""Expert order, the way back, and the block-to-expert table."""

import pytest
import torch

from kernels.permute import block_experts, combine_rows, gather_rows, max_blocks, sort_by_expert

IDS = torch.tensor([[2, 0], [0, -1], [2, 1], [0, 2]], dtype=torch.int32)


def test_sort_is_stable_and_leaves_dropped_pairs_out():
    perm = sort_by_expert(IDS, 4)
    assert perm.order.tolist() == [1, 2, 6, 5, 0, 4, 7]
    assert perm.offsets.tolist() == [0, 3, 4, 7, 7]
    assert perm.order.dtype == perm.offsets.dtype == torch.int64


def test_dropped_pairs_can_be_kept_last():
    perm = sort_by_expert(IDS, 4, keep_dropped=True)
    assert perm.order.tolist() == [1, 2, 6, 5, 0, 4, 7, 3]
    assert perm.offsets.tolist() == [0, 3, 4, 7, 7]


@pytest.mark.parametrize("keep_dropped", [False, True])
def test_combine_undoes_gather(keep_dropped):
    x_TH = torch.randn(4, 6)
    weights = torch.tensor([[0.5, 0.25], [1.0, 9.0], [2.0, -1.0], [0.5, 0.5]])
    perm = sort_by_expert(IDS, 4, keep_dropped=keep_dropped)
    rows = gather_rows(x_TH, perm, 2)
    if keep_dropped:
        rows[perm.offsets[-1] :] = 0
    kept = torch.where(IDS < 0, 0.0, weights).sum(1, keepdim=True)
    torch.testing.assert_close(combine_rows(rows, perm, weights), x_TH * kept)


def test_combine_repeats_bit_for_bit_and_keeps_the_dtype():
    generator = torch.Generator().manual_seed(1)
    ids = torch.stack([torch.randperm(16, generator=generator)[:4] for _ in range(33)])
    perm = sort_by_expert(ids, 16)
    rows = torch.randn(perm.num_rows, 24, generator=generator).bfloat16()
    weights = torch.rand(33, 4, generator=generator)
    first = combine_rows(rows, perm, weights)
    assert first.dtype == torch.bfloat16
    assert all(torch.equal(first, combine_rows(rows, perm, weights)) for _ in range(5))


def test_a_dropped_pair_is_not_poisoned_by_another_row():
    ids = torch.tensor([[0], [-1]])
    perm = sort_by_expert(ids, 2)
    out = combine_rows(torch.full((1, 3), float("nan")), perm, torch.ones(2, 1))
    assert out[0].isnan().all()
    assert out[1].tolist() == [0, 0, 0]


def test_no_tokens_and_no_pairs():
    empty = sort_by_expert(torch.empty(0, 2, dtype=torch.int32), 3)
    assert empty.offsets.tolist() == [0, 0, 0, 0]
    assert combine_rows(torch.empty(0, 5), empty, torch.empty(0, 2)).shape == (0, 5)
    dropped = sort_by_expert(torch.full((3, 2), -1), 3)
    assert combine_rows(torch.empty(0, 5), dropped, torch.ones(3, 2)).tolist() == [[0.0] * 5] * 3


def test_c07_block_experts():
    table = block_experts(torch.tensor([2, 3, 0, 6, 8]), 4)
    experts = table.experts.tolist()
    assert experts[:6] == [0, 1, 3, 3, 4, 4]
    assert set(experts[6:]) <= {-1}
    assert 2 not in experts
    assert table.starts.tolist()[:6] == [0, 2, 5, 9, 11, 15]
    assert int(table.padded_rows) == 24


@pytest.mark.parametrize("num_experts", [5, 60, 96, 160])
@pytest.mark.parametrize("block", [1, 4, 64])
def test_block_table_covers_every_row_once(num_experts, block):
    counts = torch.randint(0, 9, (num_experts,), generator=torch.Generator().manual_seed(num_experts))
    table = block_experts(counts, block)
    ends = counts.cumsum(0)
    seen = []
    for expert, start in zip(table.experts.tolist(), table.starts.tolist(), strict=True):
        if expert >= 0:
            assert start >= ends[expert] - counts[expert]
            seen += range(start, min(start + block, int(ends[expert])))
    assert seen == list(range(int(counts.sum())))


def test_block_bound_holds_when_every_expert_wastes_a_block():
    counts = torch.tensor([5, 5, 5, 0])
    assert (block_experts(counts, 4).experts >= 0).sum() == 6 == max_blocks(15, 4, 4)
    assert max_blocks(0, 8, 64) == 0
    assert max_blocks(2, 256, 64) == 2


def test_a_block_of_no_rows_is_refused():
    with pytest.raises(ValueError, match="block: 0"):
        block_experts(torch.tensor([1]), 0)
