"""Every catalog file validates, says where its figures are from, and holds what the field publishes."""

from pathlib import Path

import pytest
import yaml

from workbench.spec.catalog import describe, load_cluster_ref, load_hardware, load_model, names
from workbench.spec.cluster import Cluster, ClusterRef, Hardware, over_base
from workbench.spec.model import Model
from workbench.spec.precision import PRECISIONS, tensor_bytes

SCENARIOS = Path(__file__).parents[2] / "scenarios"
CATALOG = SCENARIOS / "catalog"
SCHEMAS = {"models": Model, "hardware": Hardware, "clusters": ClusterRef}


def load_all(kind):
    files = sorted((CATALOG / kind).glob("*.yaml"))
    return {path.stem: SCHEMAS[kind].model_validate(yaml.safe_load(path.read_text())) for path in files}


MODELS, HARDWARE, CLUSTERS = (load_all(kind) for kind in SCHEMAS)
TINY = [name for name in MODELS if name.endswith("-tiny")]
BILLIONS = {
    "deepseek-v2-lite": 15.7, "deepseek-v2": 236, "deepseek-v3": 671, "deepseek-r1": 671, "deepseek-v3.2": 671,
    "kimi-k2": 1026, "qwen3-30b-a3b": 30.5, "qwen3-235b-a22b": 235, "gpt-oss-20b": 20.9, "gpt-oss-120b": 116.8,
    "mixtral-8x7b": 46.7, "mixtral-8x22b": 140.6, "llama-4-scout": 109, "llama-4-maverick": 400, "glm-4.5": 355,
    "minimax-m2": 230,
}  # fmt: skip


def attention_weights(model):
    a, hidden = model.attention, model.hidden
    if a.kind == "gqa":
        return 2 * hidden * a.head_dim * (a.num_heads + a.num_kv_heads)
    query = a.num_heads * (a.head_dim + a.rope_head_dim)
    down_up = a.q_lora_rank * (hidden + query) if a.q_lora_rank else hidden * query
    values = a.num_heads * a.head_dim
    return down_up + hidden * (a.kv_lora_rank + a.rope_head_dim) + 2 * a.kv_lora_rank * values + values * hidden


def total_weights(model):
    expert = 3 * model.hidden * model.moe_intermediate
    shared = 3 * model.hidden * model.shared_intermediate
    dense = 3 * model.hidden * model.dense_intermediate
    layers = model.moe_layers * (model.num_experts * (expert + model.hidden) + shared)
    layers += (model.total_layers - model.moe_layers) * dense + model.total_layers * attention_weights(model)
    return layers + 2 * model.attention.vocabulary * model.hidden


@pytest.mark.parametrize("kind", SCHEMAS)
def test_names_are_those_of_the_files_lower_case_with_dashes(kind):
    entries = {"models": MODELS, "hardware": HARDWARE, "clusters": CLUSTERS}[kind]
    assert entries
    for stem, entry in entries.items():
        assert entry.name == stem
        assert set(stem) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")


def test_the_named_models_parts_and_clusters_are_there():
    assert set(MODELS) == {*BILLIONS, *TINY}
    assert len(TINY) == 6
    assert set(HARDWARE) == {
        "a100-sxm", "h100-sxm", "h200-sxm", "h800-sxm", "h20", "b200-sxm", "b300-sxm", "gb200-nvl72", "gb300-nvl72",
        "mi300x", "mi325x", "mi355x", "gaudi2", "gaudi3", "l40s", "rtx-4090", "rtx-5090", "rtx-pro-6000", "cpu",
    }  # fmt: skip
    assert set(CLUSTERS) == {
        "hgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl72", "a100-hdr", "mi300x-node", "gaudi3-node", "this-machine",
    }  # fmt: skip


@pytest.mark.parametrize("name", BILLIONS)
def test_a_models_shapes_add_up_to_its_published_size(name):
    assert total_weights(MODELS[name]) / 1e9 == pytest.approx(BILLIONS[name], rel=0.012)


@pytest.mark.parametrize("name", MODELS)
def test_models_are_whole(name):
    model = MODELS[name]
    assert model.top_k <= model.num_experts
    assert model.native_precision in PRECISIONS
    assert (model.num_shared_experts > 0) == (model.shared_intermediate > 0)
    if model.moe_layer_ids is None:
        assert model.moe_layers == model.total_layers - model.first_dense_layers
    else:
        assert model.moe_layers == len(set(model.moe_layer_ids))
        assert max(model.moe_layer_ids) < model.total_layers
    groups = getattr(model.router, "num_groups", 1)
    assert model.num_experts % groups == 0
    assert model.top_k <= model.num_experts // groups * getattr(model.router, "topk_group", 1)
    assert {"shapes", "router", "native_precision"} <= set(model.sources)
    assert ("attention" in model.sources) == (model.attention is not None)
    assert ("activation" in model.sources) == (model.activation.kind != "swiglu")


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_model_keeps_the_rules_of_its_model_and_fits_a_laptop(name):
    tiny = MODELS[name]
    full = MODELS[tiny.sources["router"]]
    assert (tiny.router, tiny.top_k, tiny.activation) == (full.router, full.top_k, full.activation)
    assert (tiny.expert_bias, tiny.num_shared_experts) == (full.expert_bias, full.num_shared_experts)
    assert tiny.native_precision == full.native_precision
    assert (tiny.shared_intermediate > 0) == (full.shared_intermediate > 0)
    assert 2 * tiny.num_experts * 3 * tiny.hidden * tiny.moe_intermediate <= 40e6
    assert tiny.num_experts % 4 == 0
    if name == "gpt-oss-tiny":
        assert all(width % 32 == 0 and width % 128 for width in (tiny.hidden, tiny.moe_intermediate))
    else:
        assert all(width % 128 == 0 for width in (tiny.hidden, tiny.moe_intermediate))


def test_maverick_has_experts_in_every_second_layer():
    assert MODELS["llama-4-maverick"].moe_layer_ids == tuple(range(1, 48, 2))


@pytest.mark.parametrize("name", HARDWARE)
def test_every_figure_of_a_part_has_a_source(name):
    part = HARDWARE[name]
    figures = {"bf16_dense_tflops", "memory_gb", "memory_tb_per_s", "scale_up", "scale_out"}
    optional = ("compute_capability", "fp8_dense_tflops", "fp4_dense_tflops", "measured_all_to_all")
    figures |= {field for field in optional if getattr(part, field) is not None}
    assert figures <= set(part.sources)
    assert (part.compute_capability is not None) == (part.device == "cuda")


@pytest.mark.parametrize("name", HARDWARE)
def test_figures_of_a_part_are_in_order(name):
    part = HARDWARE[name]
    assert part.bf16_dense_tflops <= (part.fp8_dense_tflops or 1e9) <= (part.fp4_dense_tflops or 1e9)
    if part.measured_all_to_all:
        assert part.measured_all_to_all.algbw_gb_per_s < part.scale_up.gb_per_s
    if part.scale_up.topology == "mesh":
        per_peer = part.scale_up.gb_per_s / (part.scale_up.domain - 1)
        assert part.scale_up.per_peer_gb_per_s == pytest.approx(per_peer, rel=0.002)
    else:
        assert part.scale_up.per_peer_gb_per_s is None


def test_s08_presets_hold_one_direction_of_nvlink():
    rates = {name: HARDWARE[name].scale_up.gb_per_s for name in ("a100-sxm", "h100-sxm", "h800-sxm", "b200-sxm")}
    assert rates == {"a100-sxm": 300, "h100-sxm": 450, "h800-sxm": 200, "b200-sxm": 900}
    leaving = 2**30 * 7 / 8
    assert leaving / (rates["h100-sxm"] * 1e9) * 1e3 == pytest.approx(2.0878, abs=1e-4)
    for path in (CATALOG / "hardware").glob("*.yaml"):
        if path.stem != "cpu":
            assert "one direction" in " ".join(path.read_text().replace("#", "").split())


def test_s01_layer_weights_by_precision():
    model = MODELS["deepseek-v3"]
    shapes = [(2 * model.moe_intermediate, model.hidden), (model.hidden, model.moe_intermediate)]
    sizes = {
        name: sum(model.num_experts * tensor_bytes(recipe.weights, *shape, weights=True) for shape in shapes)
        for name, recipe in PRECISIONS.items()
    }
    weights = 11_274_289_152
    tensor_scales = 4 * len(shapes) * model.num_experts
    assert sizes["bf16"] == 2 * weights
    assert sizes["nvfp4"] == sizes["nvfp4_w4a16"] == 6_341_787_648 + tensor_scales
    assert sizes["mxfp4"] == sizes["mxfp4_w4a16"] == sizes["mxfp4_w4a8"] == 5_989_466_112
    assert sizes["mxfp8"] == 11_626_610_688
    assert sizes["fp8_tensor"] == weights + tensor_scales
    assert sizes["fp8_block"] == weights + 4 * weights // 128**2


def test_s07_gigabytes_and_gibibytes_differ():
    decimal, binary = (ClusterRef(hardware="h100-sxm", memory=size).memory for size in ("80GB", "80GiB"))
    assert (decimal, binary) == (80_000_000_000, 85_899_345_920)
    card = ClusterRef(hardware="a100-sxm", memory="40GiB").memory
    free = card - 42_520_000_000
    assert round(42.52e9 / 2**30, 2) == 39.60
    assert 0 < free == pytest.approx(0.40 * 2**30, rel=0.01)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_names_a_part_and_can_be_made_larger(name):
    base = CLUSTERS[name]
    assert base.hardware in HARDWARE
    assert base.gpus_per_node <= HARDWARE[base.hardware].scale_up.domain
    larger = over_base(ClusterRef.model_validate({"base": name, "nodes": 16, "links": {"oversubscription": 2.0}}), base)
    assert (larger.nodes, larger.gpus_per_node, larger.hardware) == (16, base.gpus_per_node, base.hardware)
    assert larger.links == base.links.model_copy(update={"oversubscription": 2.0})
    assert over_base(ClusterRef(base=name), base) == base


def test_the_racks_node_is_its_nvlink_domain():
    rack, part = CLUSTERS["gb200-nvl72"], HARDWARE["gb200-nvl72"]
    cluster = Cluster(
        name="rack", hardware=part, nodes=rack.nodes, gpus_per_node=rack.gpus_per_node, device="cuda",
        memory_bytes=round(part.memory_gb * 1e9), usd_per_gpu_hour=None, host=None,
    )  # fmt: skip
    assert cluster.num_gpus == part.scale_up.domain == 72


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_file_opens_with_a_line_that_says_what_it_is(kind):
    for path in (CATALOG / kind).glob("*.yaml"):
        assert path.read_text().startswith("# ")
        assert 15 < len(describe(kind, path.stem)) < 120
    assert set(names(kind)) == {path.stem for path in (CATALOG / kind).glob("*.yaml")}


def test_the_lookup_reads_the_same_entries():
    assert {name: load_model(name) for name in names("models")} == MODELS
    assert {name: load_hardware(name) for name in names("hardware")} == HARDWARE
    assert {name: load_cluster_ref(name) for name in names("clusters")} == CLUSTERS
