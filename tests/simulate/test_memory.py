"""Bytes of weights and memory fit: redundant and shared experts, tensor parallelism, GB against GiB."""

import pytest

from tests.simulate.cells import cluster_of, make_cell
from workbench.run.simulated import run_simulated
from workbench.simulate.buffers import dispatch_buffer_bytes
from workbench.simulate.memory import GIB, MemoryFit, layer_fit, model_fit
from workbench.simulate.traffic import group_traffic
from workbench.simulate.weights import expert_bytes, moe_layer_weights
from workbench.spec.base import parse_size
from workbench.spec.catalog import resolve_model
from workbench.spec.identity import cell_id
from workbench.spec.precision import PRECISIONS

WEIGHTS = 11_274_289_152


def routed(model, precision, *, ep=1, tp=1, redundant=0):
    return moe_layer_weights(model, PRECISIONS[precision], ep=ep, tp=tp, redundant=redundant)["routed_experts"]


def test_s01_four_bit_weights_with_their_scales():
    model = resolve_model("deepseek-v3")
    assert WEIGHTS == 256 * 3 * 7168 * 2048
    global_scales = 256 * 2 * 4
    assert routed(model, "nvfp4") == 6_341_787_648 + global_scales
    assert routed(model, "nvfp4_w4a16") == routed(model, "nvfp4")
    assert routed(model, "mxfp4") == 5_989_466_112
    assert routed(model, "mxfp8") == 11_626_610_688
    assert routed(model, "fp8_block") == WEIGHTS + 4 * WEIGHTS // (128 * 128)
    assert routed(model, "fp8_tensor") == WEIGHTS + global_scales
    assert routed(model, "bf16") == 2 * WEIGHTS


def test_s03_expert_weights_are_divided_by_ep_and_tp():
    model = resolve_model("kimi-k2")
    assert model.num_experts == 384
    one = expert_bytes(model, PRECISIONS["bf16"])
    assert routed(model, "bf16", ep=8) == 48 * one
    assert routed(model, "bf16", ep=8, tp=2) == 24 * one
    whole, half = model_fit(make_cell(model, ep=8)).parts, model_fit(make_cell(model, ep=8, tp=2)).parts
    assert half["attention"] == whole["attention"], "experts' tp is not attention's"
    narrow = make_cell(model, ep=8, parallel={"ep": 8, "tp": 1, "attn_tp": 2})
    assert model_fit(narrow).parts["attention"] < whole["attention"]
    assert model_fit(narrow).parts["routed_experts"] == whole["routed_experts"]


def test_s04_a_model_that_does_not_fit_says_by_how_much():
    per_gpu = 671 * 10**9 // 8
    small, large = (MemoryFit({"routed_experts": per_gpu}, parse_size(size)) for size in ("80GB", "141GB"))
    assert not small.fits
    assert 8 * small.shortage_bytes == 31 * 10**9
    assert "short by" in small.text
    assert large.fits
    assert large.shortage_bytes == 0


def test_s04_the_real_model_on_eight_gpus():
    on_80, on_141 = (
        model_fit(make_cell(precision="fp8_block", tokens=1, cluster=cluster_of(part, gpus=8)))
        for part in ("h100-sxm", "h200-sxm")
    )
    assert not on_80.fits
    assert 8 * on_80.shortage_bytes >= 31 * 10**9
    assert on_141.fits
    assert on_141.complete
    # 671e9 parameters, of which attention, dense layers, router and shared experts stand whole on all eight
    once = on_141.parts["routed_experts"] * 8 + on_141.weight_bytes - on_141.parts["routed_experts"]
    assert once == pytest.approx(671e9, rel=0.01)


def test_s04_a_layer_that_does_not_fit_has_no_latency():
    cell = make_cell(precision="bf16", workload={"layers": 58}, cluster=cluster_of("h100-sxm", gpus=8))
    record = run_simulated(cell).record
    assert record.status == "infeasible"
    assert record.latency_us is None
    assert record.fits is False
    assert record.shortage_bytes == record.peak_memory_bytes - 80 * 10**9 > 0
    assert f"{record.shortage_bytes} bytes" in record.reason
    assert f"{record.shortage_bytes / GIB:.2f} GiB" in record.reason


def test_s07_gigabytes_and_gibibytes_are_apart():
    card, weights = parse_size("40GiB"), 42_520_000_000
    fit = MemoryFit({"routed_experts": weights}, card)
    assert fit.fits
    assert "39.60 GiB of 40.00 GiB" in fit.text
    assert "0.40 GiB free" in fit.text
    assert not MemoryFit({"routed_experts": weights, "kv_cache": GIB // 2}, card).fits
    assert not MemoryFit({"routed_experts": weights}, parse_size("40GB")).fits
    assert parse_size("80GB") == 80 * 10**9 < parse_size("80GiB") == 80 * 2**30


def test_s15_redundant_experts_take_memory():
    model = resolve_model("deepseek-v3")
    plain, redundant = routed(model, "fp8_block", ep=32), routed(model, "fp8_block", ep=32, redundant=32)
    assert redundant == 9 * expert_bytes(model, PRECISIONS["fp8_block"])
    assert redundant / plain == 1.125
    fit = model_fit(make_cell(model, ep=32, redundant=32, precision="fp8_block"))
    assert fit.parts["routed_experts"] == 58 * redundant


def test_experts_that_do_not_divide_are_refused_with_the_mend():
    with pytest.raises(ValueError, match="2"):
        moe_layer_weights(resolve_model("deepseek-v3"), PRECISIONS["bf16"], ep=3)


def test_buffers_follow_the_busiest_rank():
    even, skewed = (
        make_cell(tokens=512, skew=skew) for skew in ("balanced", {"kind": "hot_rank", "factor": 3.0, "rank": 2})
    )
    fit_even, _ = layer_fit(even, group_traffic(even))
    fit_skewed, worst = layer_fit(skewed, group_traffic(skewed))
    assert worst == 2
    assert fit_skewed.parts["activations"] > 1.5 * fit_even.parts["activations"]
    assert fit_skewed.weight_bytes == fit_even.weight_bytes


def test_kv_cache_grows_with_context_in_decode_only():
    short, long = (
        model_fit(make_cell(workload={"context_tokens": tokens})).parts["kv_cache"] for tokens in (1024, 4096)
    )
    assert long == 4 * short == 128 * 4096 * 61 * 2 * 576
    prefill = model_fit(make_cell(workload={"phase": "prefill", "context_tokens": 4096}))
    assert prefill.parts["kv_cache"] == 128 * 61 * 2 * 576


def test_layers_with_a_window_keep_no_more_tokens():
    """GPT-OSS: half of the layers keep 128 tokens, so a batch of 512 at 8192 tokens fits one H200."""
    cell = make_cell(
        "gpt-oss-120b", ep=1, tokens=384, precision="mxfp4_w4a16", workload={"context_tokens": 4096},
        cluster=cluster_of(gpus=1),
    )  # fmt: skip
    fit, per_token = model_fit(cell), 2 * 2 * 8 * 64
    assert fit.parts["kv_cache"] == 384 * per_token * 18 * (4096 + 128)
    assert fit.fits
    attention = cell.model.attention.model_copy(update={"sliding_layers": 0, "sliding_window": 0})
    everything = cell.model_copy(update={"model": cell.model.model_copy(update={"attention": attention})})
    assert model_fit(everything).parts["kv_cache"] == 384 * per_token * 36 * 4096
    assert not model_fit(everything).fits


def test_a_window_leaves_the_ids_of_layer_cells_as_they_were():
    """Results written before the catalog knew of windows stay comparable; whole models are told apart by them."""
    cells = [make_cell("gpt-oss-120b", ep=8, scope=scope) for scope in ("layer", "model")]
    ids = []
    for cell in cells:
        attention = cell.model.attention.model_copy(update={"sliding_layers": 0, "sliding_window": 0})
        plain = cell.model_copy(update={"model": cell.model.model_copy(update={"attention": attention})})
        ids.append([cell_id(one.__dict__) for one in (cell, plain)])
    assert ids[0][0] == ids[0][1]
    assert ids[1][0] != ids[1][1]


def test_attention_tensor_parallelism_keeps_the_tokens_of_its_ranks():
    """Eight ranks' tokens over eight heads' groups: as much a GPU as before in GQA, eight times as much of a latent."""
    for model, factor in (("qwen3-235b-a22b", 8 * 1 / 4), ("deepseek-v3", 8)):
        alone, shared = (
            model_fit(make_cell(model, ep=8, parallel={"ep": 8, "tp": 1, "attn_tp": degree})).parts["kv_cache"]
            for degree in (1, 8)
        )
        assert shared == factor * alone


def test_buffers_by_strategy():
    sizes = {}
    for strategy in ("none", "flat", "node_dedup", "packed", "low_latency", "allgather_reduce_scatter"):
        cell = make_cell(ep=32, tokens=128, dispatch={"strategy": strategy, "dispatch_dtype": "fp8_block"})
        sizes[strategy] = dispatch_buffer_bytes(cell)
    assert sizes["none"] == 0
    # every token of 32 ranks in each of 8 slots, in bf16 both ways, for two calls
    assert sizes["low_latency"] == 2 * 8 * 32 * 128 * 2 * 14336
    assert sizes["flat"] < sizes["node_dedup"] < sizes["low_latency"]
    assert sizes["allgather_reduce_scatter"] > sizes["flat"]


def test_counted_buffers_are_about_those_of_even_traffic():
    names = "flat", "node_dedup", "packed", "two_dh", "bruck", "balanced_stages", "allgather_reduce_scatter"
    for strategy in names:
        cell = make_cell("qwen3-235b-a22b", ep=32, tokens=1024, dispatch={"strategy": strategy})
        counted = layer_fit(cell, group_traffic(cell))[0].parts["dispatch_buffers"]
        assert dispatch_buffer_bytes(cell) == pytest.approx(counted, rel=0.1), strategy


def test_optimizer_state_by_weight():
    fits = {
        name: layer_fit(cell, group_traffic(cell))[0].parts.get("optimizer", 0)
        for name in ("none", "sgd", "adamw_bf16", "adamw_fp32")
        for cell in [make_cell("qwen3-30b-a3b", ep=8, scope="train_step", optimizer=name)]
    }
    weights = 16 * 3 * 2048 * 768
    assert fits == {"none": 0, "sgd": 0, "adamw_bf16": 4 * weights, "adamw_fp32": 12 * weights}
    narrow = make_cell("qwen3-30b-a3b", ep=8, scope="train_step", optimizer="adamw_bf16", precision="fp8_block")
    assert layer_fit(narrow, group_traffic(narrow))[0].parts["optimizer"] == 6 * weights


def test_the_state_of_training_a_whole_model():
    """30.5e9 weights on eight ranks: experts an eighth each, the rest whole; gradients and state in float32."""
    cell = make_cell(
        "qwen3-30b-a3b", ep=8, tokens=4096, scope="model", optimizer="adamw_fp32", workload={"phase": "train"}
    )
    parts = model_fit(cell).parts
    assert parts["optimizer"] == 3 * parts["gradients"]
    experts = 48 * 16 * 3 * 2048 * 768
    assert 8 * experts + (parts["gradients"] // 4 - experts) == pytest.approx(30.5e9, rel=0.01)
    staged = cell.model_copy(update={"parallel": cell.parallel.model_copy(update={"pp": 2})})
    assert 0.45 < model_fit(staged).parts["optimizer"] / parts["optimizer"] < 0.52
    assert "kv_cache" not in parts
