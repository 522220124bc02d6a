"""Everything of a model but its MoE layers as roofline stages of one GPU: attention, dense MLPs, the vocabulary.

t tokens of the attention group (``context``), H hidden, h heads of this GPU (attn_tp cuts them), d a value head's
width. No row or constant is behind these stages: bytes over bandwidth, FLOPs over the dense peak, and launches, as
``compute`` says, so they are the least that such a part can take.

Multi-head latent attention is computed absorbed in decode (queries and outputs go through the latent, which is read
once for all heads) and by keys and values written out in prefill and training.
"""

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from workbench.simulate.compute import Rates, Stage, copy_stage, gemm_stage, is_encoded, rates_of
from workbench.simulate.context import Context
from workbench.simulate.formats import row_bytes
from workbench.simulate.stages import mlp_stages
from workbench.simulate.train import FLOPS_FACTOR
from workbench.simulate.weights import WIDE_BYTES, dense_format, kv_bytes_per_token
from workbench.spec.cluster import Hardware
from workbench.spec.model import Attention, Model
from workbench.spec.precision import WIDE, NumberFormat, Precision, tensor_bytes

CORE_PASSES = 2
"""Kernels of the attention core: the heads, and the sum over parts of a long context."""


@dataclass(frozen=True)
class DenseParts:
    """Prices stages outside the experts on one GPU: weights in ``number``, heads and widths cut by ``attn_tp``."""

    model: Model
    number: NumberFormat
    attn_tp: int
    rates: Rates
    decode: bool

    @property
    def precision(self) -> Precision:
        return _recipe(self.number)

    def gemm(self, name: str, *, rows: float, out: int, inner: int, number: NumberFormat | None = None) -> Stage:
        """rows x inner to out, with the rows encoded before it where the weights are narrow."""
        number = self.number if number is None else number
        wide = not is_encoded(number)
        return gemm_stage(
            name, rows_R=np.array([rows]), touched_R=np.ones(1), out=out, inner=inner,
            weight_bytes=tensor_bytes(number, out, inner, weights=True),
            in_row_bytes=row_bytes(number, inner) + (0 if wide else 2 * WIDE_BYTES * inner),
            flops_per_us=self.rates.wide_flops_per_us if wide else self.rates.expert_flops_per_us,
            kernels=1 if wide else 2,
        )  # fmt: skip

    def attention(self, context: Context, window: int | None) -> tuple[Stage, ...]:
        """One layer: norms and residuals, projections, the core over its window, the output."""
        attention, tokens, hidden = self.model.attention, context.tokens, self.model.hidden
        assert attention is not None
        heads = ceil(attention.num_heads / self.attn_tp)
        norms = copy_stage(
            "norm", rows_R=np.array([tokens]), row_bytes=8 * WIDE_BYTES * hidden, rates=self.rates, kernels=2
        )
        last = self.gemm("attention.out", rows=tokens, out=hidden, inner=heads * attention.head_dim)
        inner = self._latent if attention.kind == "mla" else self._grouped
        return (norms, *inner(attention, heads, context, window), last)

    def _grouped(self, a: Attention, heads: int, context: Context, window: int | None) -> tuple[Stage, ...]:
        kv_heads, hidden = ceil(a.num_kv_heads / self.attn_tp), self.model.hidden
        qkv = self.gemm("attention.qkv", rows=context.tokens, out=(heads + 2 * kv_heads) * a.head_dim, inner=hidden)
        width = (2 * heads + 2 * kv_heads) * a.head_dim
        return qkv, self._core(a, context, window, flops_a_pair=4 * heads * a.head_dim, width=width)

    def _latent(self, a: Attention, heads: int, context: Context, window: int | None) -> tuple[Stage, ...]:
        tokens, hidden, query = context.tokens, self.model.hidden, heads * (a.head_dim + a.rope_head_dim)
        rank = a.kv_lora_rank
        down = self.gemm("attention.down", rows=tokens, out=a.q_lora_rank + rank + a.rope_head_dim, inner=hidden)
        if not a.q_lora_rank:
            down = self.gemm("attention.down", rows=tokens, out=query + rank + a.rope_head_dim, inner=hidden)
        up = (self.gemm("attention.up", rows=tokens, out=query, inner=a.q_lora_rank),) if a.q_lora_rank else ()
        # Keys and values out of the latent, or queries into it and outputs back: the same products per head.
        both = self.gemm("attention.latent", rows=tokens, out=2 * heads * a.head_dim, inner=rank)
        wide = (rank + a.rope_head_dim, rank) if self.decode else (a.head_dim + a.rope_head_dim, a.head_dim)
        width = heads * sum(wide)
        core = self._core(a, context, window, flops_a_pair=2 * heads * sum(wide), width=width)
        return down, *up, both, core

    def _core(self, a: Attention, context: Context, window: int | None, *, flops_a_pair: int, width: int) -> Stage:
        """Decode reads the cache of every sequence; a prompt its own keys and values, once."""
        pairs = context.pairs(window, decode=self.decode)
        kept = kv_bytes_per_token(a, attn_tp=self.attn_tp)
        moved = WIDE_BYTES * width * context.tokens + kept * (pairs if self.decode else context.tokens)
        return Stage(
            "attention.core", np.array([moved]), np.array([float(flops_a_pair) * pairs]), CORE_PASSES,
            self.rates.wide_flops_per_us,
        )  # fmt: skip

    def mlp(self, tokens: float) -> tuple[Stage, ...]:
        """The dense MLP of a layer without experts."""
        width = ceil(self.model.dense_intermediate / self.attn_tp)
        return tuple(
            mlp_stages(
                ("dense_mlp",) * 4, rows_R=np.array([tokens]), touched_R=np.ones(1), hidden=self.model.hidden,
                intermediate=width, precision=self.precision, rates=self.rates,
                w13_share=tensor_bytes(self.number, 2 * width, self.model.hidden, weights=True),
            )
        )  # fmt: skip

    def head(self, *, tokens: float, scored: float) -> tuple[Stage, ...]:
        """Rows of the embedding for every token, and logits of ``scored`` of them over the vocabulary, in bf16."""
        attention, hidden = self.model.attention, self.model.hidden
        assert attention is not None
        rows = copy_stage("embedding", rows_R=np.array([tokens]), row_bytes=2 * WIDE_BYTES * hidden, rates=self.rates)
        words = ceil(attention.vocabulary / self.attn_tp)
        return rows, self.gemm("logits", rows=scored, out=words, inner=hidden, number=WIDE)


def dense_parts(model: Model, precision: Precision, hardware: Hardware, *, attn_tp: int, decode: bool) -> DenseParts:
    """The dense parts as the cell's precision leaves them: FP8 where the model ships FP8, else bf16."""
    number = dense_format(model, precision)
    return DenseParts(model, number, attn_tp, rates_of(hardware, _recipe(number)), decode)


def _recipe(number: NumberFormat) -> Precision:
    return Precision(name=number.format, weights=number, activations=number)


def with_backward(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Forward and backward: three times the bytes, FLOPs and launches."""
    return tuple(
        replace(
            stage, bytes_R=FLOPS_FACTOR * stage.bytes_R, flops_R=FLOPS_FACTOR * stage.flops_R,
            kernels=FLOPS_FACTOR * stage.kernels,
        )
        for stage in stages
    )  # fmt: skip
