"""A layer whose experts come through a cache of slots: in waves that fit, the next one copied beside the work on one.

T tokens, E experts, K top-k, H hidden, S slots.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.moe import expert_mlp, moe_layer
from kernels.offload import ExpertCache
from kernels.permute import combine_at, gather_rows, sort_by_expert


def touched_experts(ids_TK: Tensor) -> list[int]:
    """Experts that some token goes to, ascending; on a GPU waits for the device, as a layer without foresight must."""
    return [expert for expert in ids_TK.unique().tolist() if expert >= 0]


def offloaded_layer(
    x_TH: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    cache: ExpertCache,
    *,
    weight_on: str = "output",
    backend: str = "auto",
    experts: Sequence[int] | None = None,
    next_experts: Sequence[int] | None = None,
) -> Tensor:
    """``kernels.moe.moe_layer`` over a cache, [T, H] in the dtype of ``x_TH``; the shared expert is not in it.

    ``experts``: those of this call if the host knows them already. ``next_experts``: those that the next call will ask
    for; where given, copies run ahead of the work, within the call and into the next.
    """
    experts = touched_experts(ids_TK) if experts is None else list(experts)
    waves = cache.waves(experts, overlap=next_experts is not None)
    if not waves:
        return torch.zeros_like(x_TH)
    pair_rows = x_TH.new_zeros(ids_TK.numel() if len(waves) > 1 else 0, x_TH.shape[1])
    for index, wave in enumerate(waves):
        slot_of = cache.fetch(wave)
        if next_experts is not None:
            ahead, needed = _ahead(waves[index + 1 :], cache)
            cache.prefetch(ahead or list(next_experts), using=[*wave, *needed])
        slots_TK = torch.where(ids_TK >= 0, slot_of[ids_TK.clamp(min=0).long()], -1)
        if len(waves) == 1:
            y_TH = moe_layer(x_TH, slots_TK, weights_TK, cache.weights, weight_on=weight_on, backend=backend)
        else:
            _compute_wave(x_TH, slots_TK, weights_TK, cache, pair_rows, weight_on=weight_on, backend=backend)
    cache.release()
    if len(waves) == 1:
        return y_TH
    if weight_on == "input":
        weights_TK = torch.ones_like(weights_TK, dtype=torch.float32)
    pairs = torch.arange(ids_TK.numel(), device=x_TH.device)
    return combine_at(pair_rows, pairs.view(ids_TK.shape), weights_TK, out_dtype=x_TH.dtype, backend=backend)


def _compute_wave(
    x_TH: Tensor,
    slots_TK: Tensor,
    weights_TK: Tensor,
    cache: ExpertCache,
    pair_rows: Tensor,
    *,
    weight_on: str,
    backend: str,
) -> None:
    """Rows of this wave's experts into ``pair_rows`` [T * K, H], each in the place of its pair."""
    perm = sort_by_expert(slots_TK, cache.num_slots)
    rows = gather_rows(x_TH, perm, slots_TK.shape[1])
    if weight_on == "input":
        rows = (rows.float() * weights_TK.reshape(-1)[perm.order, None].float()).to(x_TH.dtype)
    rows = expert_mlp(rows, perm.offsets, cache.weights, backend=backend)
    pair_rows.index_copy_(0, perm.order, rows.to(pair_rows.dtype))


def _ahead(later: list[list[int]], cache: ExpertCache) -> tuple[list[int], list[int]]:
    """Of the waves still to come: the first that lacks an expert, and all residents, which must stay."""
    resident = cache.resident
    lacking = next((wave for wave in later if not resident.issuperset(wave)), [])
    return lacking, [e for wave in later for e in wave if e in resident]
