"""Configs of every family give the models of the catalog; what cannot be read is refused by the field's name."""

import json
import re
from pathlib import Path

import pytest
import yaml

from workbench.spec.catalog import resolve_model
from workbench.spec.huggingface import model_from_config
from workbench.spec.model import Model

MODELS = Path(__file__).parents[2] / "scenarios" / "catalog" / "models"

MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
FP8 = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}}
MXFP4 = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}


def attention(heads, kv_heads, vocabulary, head_dim=None):
    config = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocabulary}
    return config if head_dim is None else config | {"head_dim": head_dim}


DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "hidden_act": "silu",
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4,
    "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "routed_scaling_factor": 2.5,
    "q_lora_rank": 1536, "num_nextn_predict_layers": 1, **attention(128, 128, 129280), **MLA, **FP8,
}  # fmt: skip
DEEPSEEK_V2 = {
    "model_type": "deepseek_v2", "num_hidden_layers": 60, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160,
    "num_experts_per_tok": 6, "n_shared_experts": 2, "n_group": 8, "topk_group": 3, "norm_topk_prob": False,
    "scoring_func": "softmax", "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0,
    "q_lora_rank": 1536, **attention(128, 128, 102400), **MLA,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True, **attention(32, 4, 151936, head_dim=128),
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "intermediate_size": 2880,
    "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4, "swiglu_limit": 7.0,
    "hidden_act": "silu", "sliding_window": 128, **attention(64, 8, 201088, head_dim=64), **MXFP4,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_local_experts": 8, "num_experts_per_tok": 2, **attention(32, 8, 32000),
}  # fmt: skip
LLAMA4_TEXT = {
    "model_type": "llama4_text", "num_hidden_layers": 48, "interleave_moe_layer_step": 1, "hidden_size": 5120,
    "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 16, "num_experts_per_tok": 1,
    "attention_chunk_size": 8192, **attention(40, 8, 202048, head_dim=128),
}  # fmt: skip
GLM = {
    "model_type": "glm4_moe", "num_hidden_layers": 92, "first_k_dense_replace": 3, "hidden_size": 5120,
    "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    **attention(96, 8, 151552, head_dim=128),
}  # fmt: skip
MINIMAX = {
    "model_type": "minimax_m2", "num_hidden_layers": 62, "hidden_size": 3072, "intermediate_size": 1536,
    "num_local_experts": 256, "num_experts_per_tok": 8, "scoring_func": "sigmoid", "use_routing_bias": True,
    "shared_intermediate_size": 0, **attention(48, 8, 200064, head_dim=128), **FP8,
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2_moe", "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3],
    "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32, "num_experts": 8,
    "num_experts_per_tok": 2, "shared_expert_intermediate_size": 96,
}  # fmt: skip


def llama4(**changes):
    return {"model_type": "llama4", "text_config": LLAMA4_TEXT | changes, "vision_config": {"hidden_size": 1408}}


CONFIGS = {
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-r1": DEEPSEEK_V3,
    "deepseek-v3.2": DEEPSEEK_V3 | {"model_type": "deepseek_v32", "index_topk": 2048},
    "kimi-k2": DEEPSEEK_V3
    | {"model_type": "kimi_k2", "first_k_dense_replace": 1, "n_routed_experts": 384, "n_group": 1, "topk_group": 1,
       "routed_scaling_factor": 2.827, **attention(64, 64, 163840)},
    "deepseek-v2": DEEPSEEK_V2,
    "deepseek-v2-lite": DEEPSEEK_V2
    | {"num_hidden_layers": 27, "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
       "n_routed_experts": 64, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "routed_scaling_factor": 1.0,
       "q_lora_rank": None, **attention(16, 16, 102400)},
    "qwen3-30b-a3b": QWEN3,
    "qwen3-235b-a22b": QWEN3
    | {"num_hidden_layers": 94, "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536,
       **attention(64, 4, 151936, head_dim=128)},
    "gpt-oss-20b": GPT_OSS,
    "gpt-oss-120b": GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128},
    "mixtral-8x7b": MIXTRAL,
    "mixtral-8x22b": MIXTRAL
    | {"num_hidden_layers": 56, "hidden_size": 6144, "intermediate_size": 16384, **attention(48, 8, 32000)},
    "llama-4-scout": llama4(),
    "llama-4-maverick": llama4(interleave_moe_layer_step=2, num_local_experts=128),
    "glm-4.5": GLM,
    "minimax-m2": MINIMAX,
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_gives_the_model_of_the_catalog(name):
    catalog = Model.model_validate(yaml.safe_load((MODELS / f"{name}.yaml").read_text()))
    read = model_from_config(CONFIGS[name], name=name)
    words = {"sources", "note"}
    assert read.model_dump(exclude=words) == catalog.model_dump(exclude=words)


def test_every_full_model_of_the_catalog_has_a_config_here():
    assert set(CONFIGS) == {path.stem for path in MODELS.glob("*.yaml") if not path.stem.endswith("-tiny")}


def test_e15_families_name_experts_and_layers_differently():
    mixtral = model_from_config(MIXTRAL, name="mixtral")
    assert (mixtral.num_experts, mixtral.moe_intermediate, mixtral.moe_layers) == (8, 14336, 32)
    qwen2 = model_from_config(QWEN2, name="qwen2")
    assert (qwen2.num_experts, qwen2.moe_intermediate, qwen2.dense_intermediate) == (8, 32, 128)
    assert qwen2.moe_layer_ids == (1, 5)
    assert qwen2.moe_layers == 2
    assert (qwen2.num_shared_experts, qwen2.shared_intermediate) == (1, 96)
    assert qwen2.router.norm_topk is False


@pytest.mark.parametrize(
    ("config", "layers", "ids", "first"),
    [
        (DEEPSEEK_V3 | {"num_hidden_layers": 8, "moe_layer_freq": 2}, 2, (4, 6), 0),
        (DEEPSEEK_V3 | {"num_hidden_layers": 8, "first_k_dense_replace": 0}, 8, None, 0),
        (QWEN2 | {"decoder_sparse_step": 1, "mlp_only_layers": [0, 1]}, 4, None, 2),
        (QWEN2 | {"mlp_only_layers": []}, 3, (1, 3, 5), 0),
        (llama4(num_hidden_layers=6, interleave_moe_layer_step=3), 2, (2, 5), 0),
        (llama4(num_hidden_layers=6, moe_layers=[0, 4]), 2, (0, 4), 0),
    ],
)
def test_layer_rules(config, layers, ids, first):
    model = model_from_config(config, name="m")
    assert (model.moe_layers, model.moe_layer_ids, model.first_dense_layers) == (layers, ids, first)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "llama", "num_hidden_layers": 2}, "model_type"),
        ({"num_hidden_layers": 2}, "model_type"),
        ({"model_type": ["mixtral"]}, "model_type"),
        (MIXTRAL | {"hidden_act": "gelu"}, "hidden_act"),
        (MIXTRAL | {"num_local_experts": "8"}, "num_local_experts"),
        (MIXTRAL | {"num_local_experts": True}, "num_local_experts"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        (MIXTRAL | {"num_experts_per_tok": 0}, "num_experts_per_tok"),
        (MIXTRAL | {"num_experts_per_tok": None}, "num_experts_per_tok"),
        ({k: v for k, v in MIXTRAL.items() if k != "hidden_size"}, "hidden_size"),
        ({k: v for k, v in DEEPSEEK_V3.items() if k != "moe_intermediate_size"}, "moe_intermediate_size"),
        (DEEPSEEK_V3 | {"n_group": 7}, "n_group"),
        (DEEPSEEK_V3 | {"topk_group": 9}, "topk_group"),
        (DEEPSEEK_V3 | {"scoring_func": "softmax"}, "scoring_func"),
        (DEEPSEEK_V2 | {"topk_method": "noaux_tc"}, "topk_method"),
        (DEEPSEEK_V3 | {"routed_scaling_factor": "2.5"}, "routed_scaling_factor"),
        (QWEN2 | {"norm_topk_prob": "yes"}, "norm_topk_prob"),
        (QWEN2 | {"mlp_only_layers": [6]}, "mlp_only_layers"),
        (QWEN2 | {"decoder_sparse_step": 7}, "num_hidden_layers"),
    ],
)
def test_what_cannot_be_read_is_refused_by_the_name_of_the_field(config, field):
    with pytest.raises(ValueError, match=rf"^{re.escape(field)}: .*YAML$"):
        model_from_config(config, name="m")


@pytest.mark.parametrize("experts", [None, 0])
def test_s13_dense_config_is_refused(experts):
    for config in (QWEN2 | {"num_experts": experts, "num_experts_per_tok": 0},
                   DEEPSEEK_V3 | {"n_routed_experts": experts, "num_experts_per_tok": None}):  # fmt: skip
        with pytest.raises(ValueError, match="experts: no experts, so a dense model"):
            model_from_config(config, name="dense")
    assert model_from_config(QWEN2 | {"num_experts": 1, "num_experts_per_tok": 1}, name="one").num_experts == 1


def test_attention_is_left_out_where_the_config_does_not_say():
    assert model_from_config(QWEN2, name="m").attention is None
    whole = model_from_config(QWEN2 | attention(4, 2, 100), name="m").attention
    assert (whole.head_dim, whole.num_kv_heads, whole.vocabulary) == (16, 2, 100)


def test_native_precision_follows_the_quantisation_config():
    per_tensor = model_from_config(MIXTRAL | {"quantization_config": {"quant_method": "fp8"}}, name="m")
    assert per_tensor.native_precision == "fp8_tensor"
    outer = llama4() | FP8
    assert model_from_config(outer, name="m").native_precision == "fp8_block"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_scenario_may_name_a_config_and_change_a_field_of_it(name, tmp_path):
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps(CONFIGS[name]))
    whole = resolve_model({"config": f"{name}/config.json"}, folder=tmp_path)
    assert whole.model_dump() == model_from_config(CONFIGS[name], name).model_dump()
    changed = resolve_model({"config": f"{name}/config.json", "hidden": 256}, folder=tmp_path)
    apart = {"hidden", "name"}
    assert changed.model_dump(exclude=apart) == whole.model_dump(exclude=apart)
    assert changed.hidden == 256


def test_windows_are_read_from_layer_types_or_by_the_familys_rule():
    kinds = ["sliding_attention", "full_attention", "full_attention"] * 8
    told = model_from_config(GPT_OSS | {"layer_types": kinds}, name="x").attention
    assert (told.sliding_window, told.sliding_layers) == (128, 8)
    assert model_from_config(MIXTRAL | {"sliding_window": None}, name="x").attention.sliding_layers == 0
    assert model_from_config(MIXTRAL | {"sliding_window": 4096}, name="x").attention.sliding_layers == 32
    unused = {"sliding_window": 4096, "use_sliding_window": False}
    assert model_from_config(MIXTRAL | unused, name="x").attention.sliding_layers == 0
