"""Whole models: attention by hand, steps that add up, one and two pools, what tokens cost, and cells that cannot be."""

import pytest

from tests.simulate.cells import cluster_of, make_cell
from workbench.plan import plan_cells
from workbench.run.simulated import run_simulated
from workbench.simulate.attention import dense_parts
from workbench.simulate.context import Context, context_of
from workbench.simulate.model import price_step, round_us, used_gpus
from workbench.simulate.serving import kv_prompt_bytes, prefill_cell, price_serving
from workbench.simulate.weights import attention_bytes, dense_format
from workbench.spec.cluster import Hardware
from workbench.spec.errors import SpecError
from workbench.spec.record import TABLE_COLUMNS
from workbench.spec.scenario_file import parse_scenario

FP8 = {"dispatch_dtype": "fp8_block"}
PROMPT = {"phase": "prefill", "isl": 4096}
SERVING = """
name: pools
scope: model
model: deepseek-v3
precision: fp8_block
dispatch: {dispatch_dtype: fp8_block}
workload: {isl: 2048, osl: 512, tokens_per_rank: 64}
serving:
  prefill: {cluster: {base: hgx-h200, usd_per_gpu_hour: 2.0}, replicas: 2, tokens_per_rank: 4096}
  decode: {cluster: {base: hgx-h200, nodes: 2, usd_per_gpu_hour: 3.0}}
  kv_transfer_gb_per_s: 50
"""


def model_cell(model="deepseek-v3", **arguments):
    return make_cell(model, scope="model", **{"precision": "fp8_block", "dispatch": FP8} | arguments)


def planned(text=SERVING, *changes):
    return plan_cells(parse_scenario(text, file="pools.yaml", overrides=changes))[0]


@pytest.mark.parametrize("window", [None, 1, 5, 100])
def test_causal_pairs_are_those_counted_one_by_one(window):
    prompt = 12
    counted = sum(min(token + 1, window or prompt) for token in range(prompt))
    assert Context(prompt, 1, prompt).pairs(window, decode=False) == counted
    assert Context(3 * prompt, 3, prompt).pairs(window, decode=False) == 3 * counted
    chunk = Context(prompt / 3, 1 / 3, prompt, 3)
    assert 3 * chunk.pairs(window, decode=False) == pytest.approx(counted)
    assert Context(7, 7, prompt).pairs(window, decode=True) == 7 * min(window or prompt, prompt)


def test_attention_by_hand():
    cell = model_cell("qwen3-30b-a3b", tokens=64, precision="bf16", workload={"context_tokens": 1000})
    parts = dense_parts(cell.model, cell.precision, cell.cluster.hardware, attn_tp=1, decode=True)
    stages = {stage.name: stage for stage in parts.attention(context_of(cell), None)}
    core, hidden = stages["attention.core"], 2048
    assert core.flops_R[0] == 64 * 1000 * 32 * 128 * 4
    assert core.bytes_R[0] == 64 * 1000 * 2 * 4 * 128 * 2 + 64 * 2 * (2 * 32 + 2 * 4) * 128
    assert stages["attention.qkv"].flops_R[0] == 2 * 64 * hidden * (32 + 8) * 128
    weights = attention_bytes(cell.model.attention, hidden, number=dense_format(cell.model, cell.precision))
    rows = 2 * 64 * (hidden + 40 * 128 + 32 * 128 + hidden)
    assert stages["attention.qkv"].bytes_R[0] + stages["attention.out"].bytes_R[0] == weights + rows


def test_latent_attention_reads_its_latent_once_in_decode_and_writes_keys_out_in_prefill():
    cell = model_cell(tokens=16, workload={"context_tokens": 4000})
    parts = {
        phase: dense_parts(cell.model, cell.precision, cell.cluster.hardware, attn_tp=1, decode=phase == "decode")
        for phase in ("decode", "prefill")
    }
    decode = {s.name: s for s in parts["decode"].attention(Context(16, 16, 4000), None)}["attention.core"]
    assert decode.flops_R[0] == 2 * 16 * 4000 * 128 * (512 + 64 + 512)
    assert decode.bytes_R[0] == 16 * 4000 * 2 * 576 + 16 * 2 * 128 * (576 + 512)
    prompt = {s.name: s for s in parts["prefill"].attention(Context(4000, 1, 4000), None)}["attention.core"]
    assert prompt.flops_R[0] == 2 * (4000 * 4001 / 2) * 128 * (128 + 64 + 128)


def test_a_step_is_its_parts_and_no_faster_than_its_weights():
    cell = model_cell(tokens=64, workload={"context_tokens": 2048})
    step = price_step(cell)
    parts = step.moe_us + step.attention_us + step.dense_us + step.head_us
    assert step.latency_us == pytest.approx(parts)
    assert round_us(cell, step) == step.latency_us
    record = run_simulated(cell).record
    assert record.status == "ok"
    assert record.tpot_us == record.latency_us == step.latency_us
    assert record.latency_us > record.weight_bytes / cell.cluster.hardware.memory_tb_per_s / 1e6
    assert record.tokens_per_s == pytest.approx(8 * 64 / record.tpot_us * 1e6)
    assert record.tokens_per_s_per_gpu == pytest.approx(record.tokens_per_s / 8)
    assert record.tokens_per_s_per_user == pytest.approx(1e6 / record.tpot_us)
    assert record.ttft_us is None
    assert record.method.endswith("roofline")
    assert "dense_roofline" in record.flags


def test_every_table_has_its_columns():
    outcome = run_simulated(planned())
    assert outcome.record.status == "ok"
    for name, columns in TABLE_COLUMNS.items():
        for row in outcome.tables[name]:
            assert set(row) == set(columns)
    assert {row["what"] for row in outcome.tables["memory"]} >= {"kv_cache", "prefill.kv_cache"}


def test_two_micro_batches_hide_messages_behind_attention():
    plain, paired = (
        price_step(model_cell(ep=32, tokens=4096, workload={"phase": "prefill", "isl": 4096}, dispatch=FP8 | overlap))
        for overlap in ({}, {"overlap": "two_batch"})
    )
    assert plain.hidden_us == 0 < paired.hidden_us <= paired.attention_us
    exchanged = sum(cost.exchange_us for cost in paired.moe) * paired.layers_each
    assert max(exchanged, paired.part("compute")) < paired.latency_us < plain.latency_us


def test_attention_over_two_gpus_halves_its_heads_and_reduces():
    whole, split = (
        price_step(model_cell("qwen3-235b-a22b", tokens=256, parallel={"ep": 8, "tp": 1, "attn_tp": degree}))
        for degree in (1, 4)
    )
    assert whole.reductions_us == 0 < split.reductions_us
    assert split.context.tokens == 4 * whole.context.tokens


def test_a_pipeline_is_filled_by_micro_batches():
    few, many = (
        model_cell(
            "qwen3-235b-a22b", tokens=64, cluster=cluster_of(gpus=32), parallel={"ep": 8, "tp": 1, "pp": 4},
            workload={"micro_batches": batches},
        )
        for batches in (1, 4)
    )  # fmt: skip
    rates = [price_serving(cell) for cell in (few, many)]
    assert used_gpus(few) == 32
    assert rates[0].tpot_us == rates[1].tpot_us > rates[0].step.stage_us
    assert rates[1].tokens_per_s == pytest.approx(4 * rates[0].tokens_per_s)


def test_prompts_longer_than_a_step_take_chunks():
    short, long = (
        price_serving(model_cell(tokens=2048, workload={"phase": "prefill", "isl": isl})) for isl in (2048, 8192)
    )
    assert short.ttft_us == short.latency_us
    assert long.ttft_us == 4 * long.latency_us > 4 * short.ttft_us
    assert long.tokens_per_s < short.tokens_per_s


def test_one_pool_puts_prompts_between_decode_steps():
    """Every 512 tokens of an answer bring a prompt of 2048: 4 prompt tokens a token and sequence."""
    cell = model_cell(tokens=64, workload={"isl": 2048, "osl": 512})
    rates = price_serving(cell)
    prompt_us = price_step(prefill_cell(cell)).latency_us
    decode_us = price_step(cell).latency_us
    assert rates.latency_us == decode_us
    assert rates.tpot_us == pytest.approx(decode_us + 64 * 4 * prompt_us / 2048)
    assert rates.ttft_us == pytest.approx(prompt_us + decode_us / 2)
    assert rates.tokens_per_s == pytest.approx(8 * 64 / rates.tpot_us * 1e6)
    long = price_serving(model_cell(tokens=64, workload={"isl": 1, "osl": 4096}))
    assert long.tpot_us == pytest.approx(long.latency_us, rel=0.02)


def test_two_pools_are_divided_by_the_gpus_of_both():
    cell = planned()
    record = run_simulated(cell).record
    assert record.status == "ok", record.reason
    assert (record.prefill_gpus, record.decode_gpus, record.num_gpus) == (16, 16, 32)
    assert record.tokens_per_s_per_gpu == pytest.approx(record.tokens_per_s / 32)
    before = price_serving(prefill_cell(cell))
    prompts = {"prefill": 2 * before.tokens_per_s / 2048, "decode": 16 * 64 / record.tpot_us * 1e6 / 512}
    assert record.tokens_per_s == pytest.approx(512 * min(prompts.values()))
    assert f"limit={min(prompts, key=prompts.get)}" in record.flags
    assert kv_prompt_bytes(cell) == 2048 * 61 * 2 * 576
    assert record.ttft_us == pytest.approx(before.ttft_us + kv_prompt_bytes(cell) / 50e3)
    hourly = 16 * 2.0 + 16 * 3.0
    assert record.usd_per_million_tokens == pytest.approx(hourly / 3600 / record.tokens_per_s * 1e6)
    assert record.joules_per_token == pytest.approx(32 * 700 / record.tokens_per_s)
    assert record.power_source == "rating"


def test_the_smaller_pool_or_the_link_limits():
    rates = [price_serving(planned(SERVING, *change)) for change in (
        ("serving.prefill.replicas=16",), ("serving.prefill.replicas=1", "workload.tokens_per_rank=256"),
        ("serving.kv_transfer_gb_per_s=0.01",),
    )]  # fmt: skip
    assert [one.bound_by_pool for one in rates] == ["decode", "prefill", "kv_transfer"]
    assert rates[2].tokens_per_s == pytest.approx(512 * 16 * 0.01e9 / (2048 * 61 * 2 * 576))


def test_a_pool_that_does_not_fit_is_named_with_its_shortage():
    record = run_simulated(planned(SERVING, "serving.decode.cluster.base=hgx-h100")).record
    assert record.status == "ok"
    record = run_simulated(planned(SERVING, "serving.prefill.cluster.base=hgx-h100")).record
    assert record.status == "infeasible"
    assert record.reason.startswith("the prefill pool needs ")
    assert record.shortage_bytes > 0
    assert f"{record.shortage_bytes} bytes" in record.reason
    assert record.tokens_per_s is None


@pytest.mark.parametrize(("change", "path", "words"), [
    (("serving.decode.parallel.ep=3",), "serving.decode", "redundant"),
    (("serving.prefill.parallel.ep=64",), "serving.prefill.parallel.ep", "64 GPUs"),
    (("scope=layer",), "serving", "scope: model"),
    (("workload.osl=null",), "workload.osl", "osl"),
    (("serving.prefill.cluster.base=hgx-h300",), "serving.prefill.cluster", "hgx-h200"),
])  # fmt: skip
def test_pools_that_cannot_be_are_refused_by_field(change, path, words):
    with pytest.raises(SpecError) as refused:
        planned(SERVING, *change)
    problems = {problem.path: problem.message for problem in refused.value.problems}
    assert any(key.startswith(path) and words in message for key, message in problems.items()), problems


def test_pools_survive_the_way_to_another_process():
    cell = planned()
    again = type(cell).model_validate_json(cell.model_dump_json())
    assert again == cell
    assert price_serving(again).tokens_per_s == price_serving(cell).tokens_per_s


def test_a_training_step_sums_gradients_and_steps_the_optimizer():
    plain, stepped, doubled = (
        price_step(model_cell(
            "qwen3-30b-a3b", tokens=4096, precision="bf16", cluster=cluster_of(gpus=16), optimizer=optimizer,
            parallel={"ep": 8, "tp": 1, "dp": dp}, workload={"phase": "train", "isl": 4096},
        ))
        for optimizer, dp in (("none", 8), ("adamw_fp32", 8), ("adamw_fp32", 16))
    )  # fmt: skip
    assert plain.extra_us >= 0
    experts = 48 * 16 * 3 * 2048 * 768
    assert stepped.extra_us - plain.extra_us > experts * (4 + 24 + 2) / 4.8e6
    assert doubled.extra_us >= stepped.extra_us
    forward = price_step(model_cell("qwen3-30b-a3b", tokens=4096, precision="bf16", workload=PROMPT))
    assert plain.attention_us == pytest.approx(3 * forward.attention_us)


def test_cells_without_attention_or_with_wide_attention_are_told():
    cell = model_cell("qwen3-30b-a3b")
    bare = cell.model_copy(update={"model": cell.model.model_copy(update={"attention": None})})
    assert "attention" in run_simulated(bare).record.reason
    wide = model_cell(ep=16, parallel={"ep": 16, "tp": 1, "attn_tp": 16})
    assert "attn_tp" in run_simulated(wide).record.reason


def test_s04_a_whole_model_that_does_not_fit_has_no_rate():
    short, enough = (
        run_simulated(model_cell(tokens=1, cluster=cluster_of(part, gpus=8))).record
        for part in ("h100-sxm", "h200-sxm")
    )
    assert (short.status, enough.status) == ("infeasible", "ok")
    assert (short.latency_us, short.tpot_us, short.tokens_per_s) == (None, None, None)
    assert 8 * short.shortage_bytes >= 31 * 10**9
    assert enough.fits
    assert enough.tpot_us > 0


def test_ranks_with_fewer_tokens_put_out_fewer():
    even, ragged = (
        price_serving(model_cell(tokens=64, workload={"sources": sources}))
        for sources in ("even", {"kind": "empty_rank", "rank": 3})
    )
    assert even.tokens_per_s * even.tpot_us == pytest.approx(8 * 64e6)
    assert ragged.tokens_per_s * ragged.tpot_us == pytest.approx(7 * 64e6)


@pytest.mark.parametrize("faster", [
    {"memory_tb_per_s": 9.6}, {"bf16_dense_tflops": 1978, "fp8_dense_tflops": 3958},
    {"scale_out": {"gb_per_s": 100}},
])  # fmt: skip
def test_a_faster_part_is_never_slower(faster):
    cell = model_cell("qwen3-235b-a22b", ep=16, tokens=64, workload={"isl": 1024, "osl": 256}, method="roofline")
    part = Hardware.model_validate(cell.cluster.hardware.model_dump() | faster)
    better = cell.model_copy(update={"cluster": cell.cluster.model_copy(update={"hardware": part})})
    before, after = price_serving(cell), price_serving(better)
    assert after.tpot_us <= before.tpot_us
    assert after.ttft_us <= before.ttft_us
