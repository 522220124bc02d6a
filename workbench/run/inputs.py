"""Seeded weights of a layer: the same on every rank of one device type, so any rank can rebuild any expert.

Shapes: w13 [n, 2I, H] (gate and up, stacked or interleaved as the model stores them), w2 [n, H, I], bf16.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch

from workbench.spec.model import Model
from workbench.spec.router import Cosine, Router

SHARED_EXPERT = -1
ROUTER = -2
CACHED_BYTES = 512 * 2**20


@dataclass(frozen=True)
class RawWeights:
    """Unquantised weights of ``n`` experts; biases only where the model has them."""

    w13: torch.Tensor | Sequence[torch.Tensor]
    w2: torch.Tensor | Sequence[torch.Tensor]
    bias13: torch.Tensor | Sequence[torch.Tensor] | None
    bias2: torch.Tensor | Sequence[torch.Tensor] | None


def _generator(seed: int, stream: int, device: torch.device) -> torch.Generator:
    mixed = (seed * 1_000_003 + stream + 17) % 2**63
    return torch.Generator(device=device).manual_seed(mixed)


def _expert(model: Model, expert: int, seed: int, device: torch.device) -> list[torch.Tensor]:
    generator = _generator(seed, expert, device)
    intermediate = model.shared_intermediate if expert == SHARED_EXPERT else model.moe_intermediate

    def normal(*shape: int, scale: float) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, device=device, dtype=torch.float32)
        return values.mul_(scale).to(torch.bfloat16)

    parts = [
        normal(2 * intermediate, model.hidden, scale=1 / math.sqrt(model.hidden)),
        normal(model.hidden, intermediate, scale=1 / math.sqrt(intermediate)),
    ]
    if model.expert_bias:
        parts += [normal(2 * intermediate, scale=0.1), normal(model.hidden, scale=0.1)]
    return parts


def expert_weights(model: Model, experts: tuple[int, ...], *, seed: int, device: torch.device) -> RawWeights:
    """Weights of the named experts, in that order; small sets are kept for the next cell."""
    make = _cached_weights if weight_bytes(model, len(experts)) <= CACHED_BYTES else _make_weights
    return make(model.model_dump_json(), experts, seed, device)


def reference_weights(model: Model, *, seed: int, device: torch.device) -> RawWeights:
    """Weights of all experts, indexed by expert; those of a large model are made one by one when asked for."""
    if weight_bytes(model, model.num_experts) <= CACHED_BYTES:
        return expert_weights(model, tuple(range(model.num_experts)), seed=seed, device=device)
    one = lru_cache(maxsize=1)(lambda expert: _make_weights(model.model_dump_json(), (expert,), seed, device))

    def part(name: str) -> Sequence[torch.Tensor]:
        return _OnDemand(model.num_experts, lambda expert: getattr(one(expert), name)[0])

    biases = [part("bias13"), part("bias2")] if model.expert_bias else [None, None]
    return RawWeights(part("w13"), part("w2"), *biases)


class _OnDemand(Sequence):
    """A sequence of tensors that are made at each access."""

    def __init__(self, length: int, make: Callable[[int], torch.Tensor]):
        self._length, self._make = length, make

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._make(index)


def weight_bytes(model: Model, num_experts: int) -> int:
    """Bytes of that many experts in bf16."""
    return 2 * 3 * num_experts * model.moe_intermediate * model.hidden


def _make_weights(model_json: str, experts: tuple[int, ...], seed: int, device: torch.device) -> RawWeights:
    model = Model.model_validate_json(model_json)
    first = _expert(model, experts[0], seed, device)
    stacked = [torch.empty(len(experts), *part.shape, dtype=part.dtype, device=device) for part in first]
    for index, expert in enumerate(experts):
        for target, part in zip(stacked, _expert(model, expert, seed, device), strict=True):
            target[index] = part
    biases = stacked[2:] if model.expert_bias else [None, None]
    return RawWeights(stacked[0], stacked[1], biases[0], biases[1])


_cached_weights = lru_cache(maxsize=8)(_make_weights)


def gate_weights(model: Model, router: Router, *, seed: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Matrices that x goes through before the router, bf16: [H, E]; [H, P] and [P, E] for cosine; none for a router
    that looks at no logits."""
    if router.kind in ("hash", "random"):
        return ()
    middle = (router.projection,) if isinstance(router, Cosine) else ()
    sizes = (model.hidden, *middle, model.num_experts)
    generator = _generator(seed, ROUTER, device)
    return tuple(
        torch.randn(rows, columns, generator=generator, device=device).div_(math.sqrt(rows)).to(torch.bfloat16)
        for rows, columns in pairwise(sizes)
    )
