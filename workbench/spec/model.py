"""A mixture-of-experts model as its MoE layers need it."""

from typing import Literal

from pydantic import Field

from workbench.spec.base import Count, Flag, Frozen, NonNegative, Positive, Real, Text
from workbench.spec.router import ModelRouter


class Activation(Frozen):
    """``swiglu``: silu(gate) * up; ``clamped_swiglu``: GPT-OSS, (up + 1) * gate * sigmoid(alpha * gate).

    ``interleaved``: gate and up rows alternate in the stored gemm1 weight instead of two halves.
    """

    kind: Literal["swiglu", "clamped_swiglu"] = "swiglu"
    alpha: Real = 1.702
    limit: Positive = 7.0
    interleaved: Flag = False


class Attention(Frozen):
    """What the dense part of a whole-model estimate needs; left out where the source does not say.

    ``head_dim`` is a value head; for ``mla`` a query head is ``head_dim + rope_head_dim`` wide and ``q_lora_rank``
    0 means that queries are projected in one step. ``sliding_layers`` of the model's layers see the last
    ``sliding_window`` tokens alone (or blocks of as many), and keep no others.
    """

    kind: Literal["gqa", "mla"] = "gqa"
    num_heads: Count
    num_kv_heads: Count
    head_dim: Count
    q_lora_rank: NonNegative = 0
    kv_lora_rank: NonNegative = 0
    rope_head_dim: NonNegative = 0
    vocabulary: Count
    sliding_window: NonNegative = 0
    sliding_layers: NonNegative = 0


class Model(Frozen):
    """Shapes and rules of one model. Widths are elements; ``sources`` says where figures were read.

    MoE layers are those after the ``first_dense_layers`` first, unless ``moe_layer_ids`` lists them (from 0).
    ``shared_intermediate`` is the width of all ``num_shared_experts`` together, which act as one.
    """

    name: Text
    total_layers: Count
    moe_layers: Count
    moe_layer_ids: tuple[NonNegative, ...] | None = None
    first_dense_layers: NonNegative = 0
    hidden: Count
    moe_intermediate: Count
    dense_intermediate: NonNegative = 0
    num_experts: Count
    top_k: Count
    num_shared_experts: NonNegative = 0
    shared_intermediate: NonNegative = 0
    router: ModelRouter
    activation: Activation = Activation()
    expert_bias: Flag = False
    native_precision: Text = "bf16"
    attention: Attention | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    note: str = ""
