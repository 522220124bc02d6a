"""Experts from a hash of the token's id (Roller et al. 2021, Hash Layers): no gate, nothing to learn."""

from torch import Tensor

from kernels.routing.base import Routing, check_logits
from kernels.routing.draws import mixed_bits
from kernels.routing.random_topk import even_weights
from kernels.routing.select import top_k_ids

_SEED = 0x5BD1E995


def hash_experts(
    logits_TE: Tensor, *, top_k: int, bias: Tensor | None = None, token_ids: Tensor, backend: str = "auto"
) -> Routing:
    """K distinct experts of every token id, each with weight 1/K; equal ids have equal experts wherever they stand.

    ``token_ids`` integers [T], not negative. The K largest of E hashes of (id, expert) are taken, which is uniform
    over experts and without replacement. Of the logits only the shape matters.
    """
    check_logits(logits_TE, top_k=top_k, bias=bias)
    num_tokens, num_experts = logits_TE.shape
    if tuple(token_ids.shape) != (num_tokens,):
        raise ValueError(f"token_ids must be [T] with T = {num_tokens}, got shape {tuple(token_ids.shape)}")
    return even_weights(top_k_ids(mixed_bits(token_ids.long(), num_experts, seed=_SEED), top_k))
