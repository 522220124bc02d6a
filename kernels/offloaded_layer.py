"""A layer whose experts come through a cache of slots: in waves that fit, the next one copied beside the work on one.

T tokens, E experts, K top-k, H hidden, S slots.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.moe import expert_mlp
from kernels.offload import ExpertCache
from kernels.permute import Permutation, combine_rows, gather_rows, sort_by_expert


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
    top_k, alone = ids_TK.shape[1], len(waves) == 1
    scale_P = weights_TK.reshape(-1).float() if weight_on == "input" else None
    if scale_P is not None:
        weights_TK = torch.ones_like(weights_TK, dtype=torch.float32)
    pairs = torch.arange(ids_TK.numel(), device=x_TH.device)
    rows, perm = x_TH.new_zeros(len(pairs), x_TH.shape[1]), Permutation(pairs, pairs[:0])
    for index, wave in enumerate(waves):
        slot_of = cache.fetch(wave)
        if next_experts is not None:
            ahead, needed = _ahead(waves[index + 1 :], cache)
            cache.prefetch(ahead or list(next_experts), using=[*wave, *needed])
        ids = torch.where(ids_TK >= 0, slot_of[ids_TK.clamp(min=0).long()], -1)
        part = sort_by_expert(ids, cache.num_slots, keep_dropped=alone)
        taken = gather_rows(x_TH, part, top_k)
        if scale_P is not None:
            taken = (taken.float() * scale_P[part.order, None]).to(x_TH.dtype)
        out = expert_mlp(taken, part.offsets, cache.weights, backend=backend)
        if alone:
            rows, perm = out, part
        else:
            rows.index_copy_(0, part.order, out.to(rows.dtype))
    cache.release()
    return combine_rows(rows, perm, weights_TK, out_dtype=x_TH.dtype, backend=backend)


def _ahead(later: list[list[int]], cache: ExpertCache) -> tuple[list[int], list[int]]:
    """Of the waves still to come: the first that lacks an expert, and all residents, which must stay."""
    resident = cache.resident
    lacking = next((wave for wave in later if not resident.issuperset(wave)), [])
    return lacking, [e for wave in later for e in wave if e in resident]
