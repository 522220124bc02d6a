"""Bytes of weights on one GPU, scales included.

E experts, H hidden, I intermediate of one expert. An expert holds w13 [2I, H] and w2 [H, I]; tensor parallelism of
degree tp cuts I, expert parallelism of ep ranks deals whole experts, redundant copies included.
"""

from math import ceil

from workbench.spec.model import Attention, Model
from workbench.spec.parallel import experts_per_rank
from workbench.spec.precision import PRECISIONS, WIDE, NumberFormat, Precision, tensor_bytes
from workbench.spec.scenario import Cell

WIDE_BYTES = 2
FLOAT32_BYTES = 4


def mlp_bytes(hidden: int, intermediate: int, *, weights: NumberFormat) -> int:
    """A gated MLP: w13 [2I, H] and w2 [H, I] with their scales."""
    w13 = tensor_bytes(weights, 2 * intermediate, hidden, weights=True)
    return w13 + tensor_bytes(weights, hidden, intermediate, weights=True)


def expert_bytes(model: Model, precision: Precision, *, tp: int = 1) -> int:
    """One routed expert's share on one GPU, with its biases where the model has them (bf16)."""
    intermediate = ceil(model.moe_intermediate / tp)
    bias = WIDE_BYTES * (2 * intermediate + model.hidden) if model.expert_bias else 0
    return mlp_bytes(model.hidden, intermediate, weights=precision.weights) + bias


def shared_expert_bytes(model: Model, precision: Precision, *, tp: int = 1) -> int:
    """The shared experts' share on one GPU: every EP rank holds them whole, in the experts' precision."""
    if not model.shared_intermediate:
        return 0
    return mlp_bytes(model.hidden, ceil(model.shared_intermediate / tp), weights=precision.weights)


def resident_experts(cell: Cell, num_slots: int) -> int:
    """Of a rank's experts those that have a place on the GPU; all unless some are offloaded."""
    if cell.offload.tier == "none":
        return num_slots
    return min(num_slots, max(1, round(num_slots * cell.offload.resident_fraction)))


def router_bytes(model: Model) -> int:
    """Gate matrix [E, H] in bf16 and one float32 a expert for the selection bias."""
    return model.num_experts * (WIDE_BYTES * model.hidden + FLOAT32_BYTES)


def moe_layer_weights(
    model: Model, precision: Precision, *, ep: int, tp: int = 1, redundant: int = 0
) -> dict[str, int]:
    """Weights of one MoE layer on one GPU: bytes of ``routed_experts``, ``shared_expert`` and ``router``.

    Raises ValueError when experts and redundant copies do not divide by ep.
    """
    slots = experts_per_rank(model.num_experts, ep, redundant=redundant)
    return {
        "routed_experts": slots * expert_bytes(model, precision, tp=tp),
        "shared_expert": shared_expert_bytes(model, precision, tp=tp),
        "router": router_bytes(model),
    }


def dense_format(model: Model, precision: Precision) -> NumberFormat:
    """Format of the weights outside the experts: FP8 where the model ships them so and the cell is not bf16."""
    ships_fp8 = model.native_precision.startswith("fp8") and model.native_precision in PRECISIONS
    return PRECISIONS[model.native_precision].weights if ships_fp8 and precision.name != "bf16" else WIDE


def attention_bytes(attention: Attention, hidden: int, *, number: NumberFormat, attn_tp: int = 1) -> int:
    """Projections of one attention layer on one GPU; heads are cut by attn_tp, MLA's down-projections are not."""

    def matrix(rows: int, columns: int) -> int:
        return tensor_bytes(number, rows, columns, weights=True)

    heads = ceil(attention.num_heads / attn_tp)
    output = matrix(hidden, heads * attention.head_dim)
    if attention.kind == "gqa":
        kv_heads = ceil(attention.num_kv_heads / attn_tp)
        return output + matrix(heads * attention.head_dim, hidden) + 2 * matrix(kv_heads * attention.head_dim, hidden)
    query_width = heads * (attention.head_dim + attention.rope_head_dim)
    if attention.q_lora_rank:
        query = matrix(attention.q_lora_rank, hidden) + matrix(query_width, attention.q_lora_rank)
    else:
        query = matrix(query_width, hidden)
    latent = matrix(attention.kv_lora_rank + attention.rope_head_dim, hidden)
    return output + query + latent + matrix(2 * heads * attention.head_dim, attention.kv_lora_rank)


def dense_elements(model: Model, *, attn_tp: int = 1, pp: int = 1) -> int:
    """Weights outside the MoE layers' experts on one GPU of the largest pipeline stage: attention, dense MLPs, routers
    and one table of the vocabulary, the other one too without a pipeline."""
    dense_layers = ceil((model.total_layers - model.moe_layers) / pp)
    count = 3 * model.hidden * ceil(model.dense_intermediate / attn_tp) * dense_layers
    count += model.hidden * model.num_experts * ceil(model.moe_layers / pp)
    if model.attention is None:
        return count
    one = attention_bytes(model.attention, model.hidden, number=WIDE, attn_tp=attn_tp) // WIDE_BYTES
    tables = 2 if pp == 1 else 1
    vocabulary = tables * model.hidden * ceil(model.attention.vocabulary / attn_tp)
    return count + one * ceil(model.total_layers / pp) + vocabulary


def kv_bytes_per_token(attention: Attention, *, attn_tp: int = 1) -> int:
    """Key-value cache of one token in one layer on one GPU, bf16; MLA keeps its latent and rope part whole."""
    if attention.kind == "mla":
        return WIDE_BYTES * (attention.kv_lora_rank + attention.rope_head_dim)
    return WIDE_BYTES * 2 * ceil(attention.num_kv_heads / attn_tp) * attention.head_dim
