"""A Hugging Face config.json as a Model: each family has its own field names and its own rule for MoE layers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.spec.config_fields import MEND, Fields
from workbench.spec.model import Activation, Attention, Model
from workbench.spec.router import ModelRouter, SigmoidGroup, SigmoidTopk, SoftmaxGroup, SoftmaxTopk, TopkSoftmax


@dataclass(frozen=True)
class Family:
    """What sets one family apart; ``*_field`` are names in its config."""

    experts_field: str
    width_field: str
    dense_field: str | None
    moe_layers: Callable[[Fields], tuple[int, ...]]
    router: Callable[[Fields], ModelRouter]
    shared: Callable[[Fields], tuple[int, int]] = lambda fields: (0, 0)
    activation: Callable[[Fields], Activation] = lambda fields: Activation()
    expert_bias: bool = False
    windowed: Callable[[int], int] = lambda layers: 0
    """Of so many layers those with windowed attention, where the config gives a window and no ``layer_types``."""
    note: str = ""


def _all_layers(fields: Fields) -> tuple[int, ...]:
    return tuple(range(fields.count("num_hidden_layers")))


def _after_first_dense(fields: Fields) -> tuple[int, ...]:
    first = fields.count("first_k_dense_replace", default=0, least=0)
    step = fields.count("moe_layer_freq", default=1)
    return tuple(i for i in _all_layers(fields) if i >= first and i % step == 0)


def _sparse_step(fields: Fields) -> tuple[int, ...]:
    step = fields.count("decoder_sparse_step", default=1)
    dense = fields.layer_list("mlp_only_layers") or ()
    return tuple(i for i in _all_layers(fields) if (i + 1) % step == 0 and i not in dense)


def _interleaved(fields: Fields) -> tuple[int, ...]:
    listed = fields.layer_list("moe_layers")
    step = fields.count("interleave_moe_layer_step", default=1)
    return _all_layers(fields)[step - 1 :: step] if listed is None else listed


def _group_limits(fields: Fields) -> dict[str, Any]:
    groups = fields.count("n_group", default=1)
    kept = fields.count("topk_group", default=1)
    experts = fields.count("n_routed_experts")
    if experts % groups:
        raise ValueError(f"n_group: {groups} groups do not divide {experts} experts; {MEND}")
    if kept > groups:
        raise ValueError(f"topk_group: {kept} of {groups} groups (n_group) cannot be kept; {MEND}")
    return {
        "num_groups": groups,
        "topk_group": kept,
        "routed_scaling": fields.number("routed_scaling_factor", default=1.0),
    }


def _sigmoid_group(fields: Fields) -> ModelRouter:
    fields.choice("scoring_func", ("sigmoid",), default="sigmoid")
    fields.choice("topk_method", ("noaux_tc",), default="noaux_tc")
    return SigmoidGroup(norm_topk=fields.flag("norm_topk_prob", default=True), **_group_limits(fields))


def _deepseek_v2_router(fields: Fields) -> ModelRouter:
    method = fields.choice("topk_method", ("greedy", "group_limited_greedy"), default="greedy")
    fields.choice("scoring_func", ("softmax",), default="softmax")
    normed = fields.flag("norm_topk_prob", default=False)
    limits = _group_limits(fields)
    if method == "greedy":
        return SoftmaxTopk(norm_topk=normed, routed_scaling=limits["routed_scaling"])
    return SoftmaxGroup(norm_topk=normed, **limits)


def _minimax_router(fields: Fields) -> ModelRouter:
    fields.choice("scoring_func", ("sigmoid",), default="sigmoid")
    return SigmoidGroup(correction_bias=fields.flag("use_routing_bias", default=True))


def _qwen_router(fields: Fields) -> ModelRouter:
    return SoftmaxTopk(norm_topk=fields.flag("norm_topk_prob", default=False))


def _shared_by_count(fields: Fields) -> tuple[int, int]:
    shared = fields.count("n_shared_experts", default=0, least=0)
    return shared, shared * fields.count("moe_intermediate_size")


def _shared_by_width(field: str) -> Callable[[Fields], tuple[int, int]]:
    def read(fields: Fields) -> tuple[int, int]:
        width = fields.count(field, default=0, least=0)
        return int(width > 0), width

    return read


def _gpt_oss_activation(fields: Fields) -> Activation:
    return Activation(kind="clamped_swiglu", limit=fields.number("swiglu_limit", default=7.0), interleaved=True)


_DEEPSEEK_V2 = Family("n_routed_experts", "moe_intermediate_size", "intermediate_size", _after_first_dense,
                      _deepseek_v2_router, _shared_by_count)  # fmt: skip
_DEEPSEEK_V3 = Family("n_routed_experts", "moe_intermediate_size", "intermediate_size", _after_first_dense,
                      _sigmoid_group, _shared_by_count)  # fmt: skip
_LLAMA4 = Family("num_local_experts", "intermediate_size", "intermediate_size_mlp", _interleaved,
                 lambda fields: SigmoidTopk(weight_on="input"), _shared_by_width("intermediate_size"),
                 windowed=lambda layers: layers - layers // 4)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe": _DEEPSEEK_V3,
    "qwen2_moe": Family("num_experts", "moe_intermediate_size", "intermediate_size", _sparse_step, _qwen_router,
                        _shared_by_width("shared_expert_intermediate_size"),
                        note="The sigmoid gate on the shared expert's output is left out."),
    "qwen3_moe": Family("num_experts", "moe_intermediate_size", "intermediate_size", _sparse_step, _qwen_router),
    "mixtral": Family("num_local_experts", "intermediate_size", None, _all_layers, lambda fields: SoftmaxTopk(),
                      windowed=lambda layers: layers),
    "gpt_oss": Family("num_local_experts", "intermediate_size", None, _all_layers,
                      lambda fields: TopkSoftmax(router_bias=True), activation=_gpt_oss_activation, expert_bias=True,
                      windowed=lambda layers: (layers + 1) // 2),
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "minimax_m2": Family("num_local_experts", "intermediate_size", None, _all_layers, _minimax_router,
                         _shared_by_width("shared_intermediate_size")),
}  # fmt: skip


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model of a multi-modal config, with what only the whole says of quantisation."""
    text = config.get("text_config")
    if not isinstance(text, Mapping) or "num_hidden_layers" in config:
        return config
    return {key: config[key] for key in ("model_type", "quantization_config") if key in config} | dict(text)


def _native_precision(fields: Fields) -> str:
    quantised = fields.values.get("quantization_config")
    if not isinstance(quantised, Mapping):
        return "bf16"
    method = quantised.get("quant_method")
    if method == "fp8":
        return "fp8_block" if quantised.get("weight_block_size") else "fp8_tensor"
    return "mxfp4_w4a16" if method == "mxfp4" else "bf16"


def _windows(fields: Fields, family: Family) -> dict[str, int]:
    """Window of attention and how many layers have it; nothing where all see everything."""
    window = fields.count("sliding_window", "attention_chunk_size", default=0, least=0)
    if fields.values.get("use_sliding_window") is False:
        return {}
    kinds = fields.values.get("layer_types")
    if isinstance(kinds, list):
        layers = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    else:
        layers = family.windowed(fields.count("num_hidden_layers"))
    return {"sliding_window": window, "sliding_layers": layers} if window and layers else {}


def _attention(fields: Fields, family: Family) -> Attention | None:
    """None where the config does not say enough."""
    if any(fields.values.get(name) is None for name in ("num_attention_heads", "vocab_size")):
        return None
    heads = fields.count("num_attention_heads")
    common = {"num_heads": heads, "vocabulary": fields.count("vocab_size"),
              "num_kv_heads": fields.count("num_key_value_heads", default=heads),
              **_windows(fields, family)}  # fmt: skip
    if fields.values.get("kv_lora_rank") is None:
        return Attention(head_dim=fields.count("head_dim", default=fields.count("hidden_size") // heads), **common)
    return Attention(
        kind="mla",
        head_dim=fields.count("v_head_dim"),
        q_lora_rank=fields.count("q_lora_rank", default=0),
        kv_lora_rank=fields.count("kv_lora_rank"),
        rope_head_dim=fields.count("qk_rope_head_dim"),
        **common,
    )


def _experts(fields: Fields, own_field: str) -> tuple[int, int]:
    """Experts and top-k; transformers writes the experts of some families under another family's name."""
    field = next((n for n in (own_field, "num_experts", "num_local_experts") if n in fields.values), own_field)
    if not fields.values.get(field):
        raise ValueError(f"{field}: no experts, so a dense model; only models with MoE layers can be read; {MEND}")
    num_experts = fields.count(field)
    top_k = fields.count("num_experts_per_tok", "experts_per_token")
    if top_k > num_experts:
        raise ValueError(f"num_experts_per_tok: {top_k} of {num_experts} experts ({field}) cannot be chosen; {MEND}")
    return num_experts, top_k


def _moe_layer_fields(fields: Fields, family: Family) -> dict[str, Any]:
    layers = family.moe_layers(fields)
    if not layers:
        raise ValueError(f"num_hidden_layers: the layer rule of {fields.model_type!r} leaves no MoE layer; {MEND}")
    total = fields.count("num_hidden_layers")
    tail = layers == tuple(range(layers[0], total))
    return {
        "total_layers": total,
        "moe_layers": len(layers),
        "moe_layer_ids": None if tail else layers,
        "first_dense_layers": layers[0] if tail else 0,
    }


def model_from_config(config: Mapping[str, Any], name: str) -> Model:
    """The model that a config.json of Hugging Face's form describes.

    Raises ValueError naming the field and the mend for an unknown ``model_type``, a dense model, and fields that
    are missing or cannot hold. Layers of multi-token prediction are left out.
    """
    if not isinstance(config, Mapping):
        raise ValueError("a config.json must hold an object of fields")
    values = _text_part(config)
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"model_type: {model_type!r} is not known, only {', '.join(FAMILIES)}; write it out in YAML")
    family, fields = FAMILIES[model_type], Fields(values, model_type)
    fields.choice("hidden_act", ("silu",), default="silu")
    num_experts, top_k = _experts(fields, family.experts_field)
    shared, shared_width = family.shared(fields)
    return Model(
        name=name,
        **_moe_layer_fields(fields, family),
        hidden=fields.count("hidden_size"),
        moe_intermediate=fields.count(family.width_field),
        dense_intermediate=fields.count(family.dense_field, default=0, least=0) if family.dense_field else 0,
        num_experts=num_experts,
        top_k=top_k,
        num_shared_experts=shared,
        shared_intermediate=shared_width,
        # As a mapping, so that its kind counts as set and outlives a dump without defaults.
        router=family.router(fields).model_dump(),
        activation=family.activation(fields),
        expert_bias=family.expert_bias,
        native_precision=_native_precision(fields),
        attention=_attention(fields, family),
        sources={"all": f"config.json of model_type {model_type}"},
        note=family.note,
    )
