"""Scenario to cells: counting, ids, what is decided, and the rules between fields."""

import itertools
import time

import numpy as np
import pytest

from workbench.plan import (
    MAX_CELLS,
    cell_label,
    cell_labels,
    count_cells,
    count_is_exact,
    estimate_seconds,
    iterate_cells,
    plan_cells,
)
from workbench.spec.errors import SpecError
from workbench.spec.parallel import experts_per_rank, least_redundancy
from workbench.spec.scenario import Cell
from workbench.spec.scenario_file import parse_scenario

MODEL = "model: {{base: mixtral-8x7b, num_experts: {experts}, top_k: {top_k}}}\n"
AXES = (
    "workload.seed",
    "workload.tokens_per_rank",
    "workload.steps",
    "workload.context_tokens",
    "workload.layers",
    "measure.min_samples",
)


def parsed(text, **options):
    return parse_scenario(text, file="t.yaml", **options)


def planned(text, **options):
    return plan_cells(parsed(text, **options))


def one(text, **options):
    (cell,) = planned(text, **options)
    return cell


def refusal(text, **options):
    with pytest.raises(SpecError) as caught:
        planned(text, **options)
    return caught.value


def moe(experts, top_k, ep, *, redundant="0", gpus=None):
    cluster = f"cluster: {{hardware: h200-sxm, nodes: 1, gpus_per_node: {gpus or ep}}}\n"
    placement = f"balance: {{placement: {{redundant_experts: {redundant}}}}}\n"
    return MODEL.format(experts=experts, top_k=top_k) + cluster + f"parallel: {{ep: {ep}}}\n" + placement


def product_of(lists):
    return "model: deepseek-v3\nmatrix:\n" + "".join(f"  {path}: {list(values)}\n" for path, values in lists.items())


# --- counting


def test_y11_a_million_cells_are_counted_not_built():
    text = product_of(dict.fromkeys(AXES, range(1, 11)))
    begin = time.perf_counter()
    file = parsed(text)
    assert count_cells(file) == 1_000_000
    with pytest.raises(SpecError, match="1000000 cells are more than 10000") as caught:
        plan_cells(file)
    assert time.perf_counter() - begin < 1
    assert "--yes" in str(caught.value)


def test_y11_forcing_builds_them():
    file = parsed(product_of(dict.fromkeys(AXES, range(1, 11))))
    cells = list(itertools.islice(iterate_cells(file), 100))
    assert len({cell.cell_id for cell in cells}) == 100
    above = parsed(product_of({"workload.seed": range(101), "workload.steps": range(1, 101)}))
    assert count_cells(above) == 10_100 > MAX_CELLS
    with pytest.raises(SpecError):
        plan_cells(above)


def test_count_with_exclude_is_what_is_built():
    text = product_of({"workload.seed": range(5), "workload.steps": range(1, 5), "precision": ["bf16", "nvfp4"]})
    text += (
        "exclude: [{workload.seed: 1}, {workload.seed: 1, precision: bf16}, {workload.steps: 2, precision: nvfp4}]\n"
    )
    text += "include: [{workload.seed: 99}]\n"
    file = parsed(text)
    assert count_cells(file) == len(planned(text)) == 5 * 4 * 2 - 8 - 4 + 1
    assert count_is_exact(file)


def test_count_of_a_million_with_overlapping_excludes():
    text = product_of(dict.fromkeys(AXES, range(1, 11)))
    text += "exclude: [{workload.seed: 1}, {workload.steps: 1}, "
    text += "{workload.seed: 2, workload.steps: 1, workload.layers: 3}]\n"
    assert count_cells(parsed(text)) == 9 * 9 * 10**4


def test_count_is_an_upper_bound_when_exact_is_costly():
    rules = ", ".join(f"{{workload.seed: {i}, workload.steps: {j}}}" for i in range(1, 8) for j in range(1, 8))
    file = parsed(product_of(dict.fromkeys(AXES, range(1, 11))) + f"exclude: [{rules}]\n")
    assert not count_is_exact(file)
    assert count_cells(file) == 1_000_000
    with pytest.raises(SpecError, match="at most 1000000"):
        plan_cells(file)


def test_the_same_cell_twice_is_planned_once():
    cells = planned("model: deepseek-v3\nmatrix: {workload.seed: [1, 2]}\ninclude: [{workload.seed: 2}]\n")
    assert [cell.workload.seed for cell in cells] == [1, 2]


# --- ids


def test_id_ignores_order_names_and_what_is_left_out():
    short = one("name: a\nmodel: mixtral-8x7b\nworkload: {seed: 1, phase: prefill}\n")
    long = one(
        "name: b\nprecision: bf16\ngroups:\n- name: g\n  workload: {phase: prefill, seed: 1, skew: {kind: uniform}}\n"
        "  parallel: {ep: 1, tp: 1}\n  router: {kind: softmax_topk}\n  cluster: {hardware: cpu, name: mine}\n"
        "  model: {base: mixtral-8x7b}\n"
    )
    assert short.cell_id == long.cell_id
    assert (short.scenario, long.scenario, long.group) == ("a", "b", "g")


@pytest.mark.parametrize(
    "override",
    [
        "workload.seed=2",
        "precision=nvfp4",
        "precision={name: bf16, scaling: delayed}",
        "workload.skew=balanced",
        "workload.skew={kind: lognormal}",
        "model.num_experts=16",
        "model=mixtral-8x22b",
        "cluster.hardware=h200-sxm",
        "engine=measure",
        "dispatch.strategy=node_dedup",
        "router=random",
        "kernel=torch",
    ],
)
def test_id_changes_with_every_setting(override):
    text = "model: mixtral-8x7b\n"
    assert one(text).cell_id != one(text, overrides=(override,)).cell_id


def test_id_of_two_kinds_with_default_fields_differs():
    cells = planned("model: mixtral-8x7b\nmatrix: {workload.skew: [power_law, zipf, lognormal, topics, drift]}\n")
    assert len({cell.cell_id for cell in cells}) == 5


def test_id_outlives_a_new_defaulted_field():
    """The id is of what differs from the defaults: a schema with one more field, at its default, gives the same."""
    from pydantic import create_model

    from workbench.spec.identity import cell_id
    from workbench.spec.workload import Workload

    cell = one("model: mixtral-8x7b\nworkload: {seed: 7}\n")
    wider = create_model("Wider", __base__=Workload, added=(int, 5))
    values = dict(cell.__dict__)
    assert cell_id(values) == cell.cell_id
    assert cell_id(values | {"workload": wider(**cell.workload.__dict__)}) == cell.cell_id
    assert cell_id(values | {"workload": wider(**cell.workload.__dict__, added=6)}) != cell.cell_id


def test_id_survives_json():
    from workbench.spec.identity import cell_id

    for cell in planned("model: deepseek-v3\nmatrix: {precision: [bf16, {name: nvfp4, overflow: nan}]}\n"):
        again = Cell.model_validate_json(cell.model_dump_json())
        assert again == cell
        assert cell_id(dict(again.__dict__)) == cell.cell_id


def test_id_follows_the_bytes_of_a_trace_not_its_path(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("a.npy", "deep/b.npy"):
        np.save(tmp_path / name, np.zeros((2, 2), dtype=np.int32))
    text = "model: mixtral-8x7b\nworkload: {{skew: {{kind: trace, path: {}, form: ids}}}}\n"
    first, moved = (one(text.format(name), folder=tmp_path) for name in ("a.npy", "deep/b.npy"))
    assert first.cell_id == moved.cell_id
    assert first.router.kind == "recorded"
    assert first.workload.skew.path == str(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.ones((2, 2), dtype=np.int32))
    assert one(text.format("a.npy"), folder=tmp_path).cell_id != first.cell_id


# --- what a planned cell decides


def test_planned_cell_has_degrees_router_and_redundancy():
    text = "model: kimi-k2\ncluster: {base: hgx-h200, nodes: 18}\nbalance: {placement: {redundant_experts: auto}}\n"
    cell = one(text + "parallel: {ep: 144}\n")
    assert cell.balance.placement.redundant_experts == 48
    assert cell.parallel.dp == 144
    assert cell.router.kind == "sigmoid_group"
    wide = one("model: deepseek-v3\ncluster: {base: hgx-h200, nodes: 4}\nparallel: {tp: 2}\n")
    assert (wide.ep, wide.parallel.dp) == (16, 32)


def test_router_of_the_models_kind_starts_from_the_models():
    cell = one("model: deepseek-v3\nrouter: {kind: sigmoid_group, topk_group: 2}\n")
    assert (cell.router.num_groups, cell.router.topk_group, cell.router.routed_scaling) == (8, 2, 2.5)


def test_links_and_memory_of_the_cluster_are_merged():
    links = "links: {scale_out_gb_per_s: 25, oversubscription: 2}"
    cell = one(f"model: mixtral-8x7b\ncluster: {{hardware: h200-sxm, memory: 80GB, {links}}}\n")
    assert cell.cluster.memory_bytes == 80 * 10**9
    assert cell.cluster.hardware.scale_out.gb_per_s == 25
    assert cell.cluster.hardware.scale_out.oversubscription == 2
    assert cell.cluster.device == "cuda"


def test_a_measured_all_to_all_belongs_to_the_links_it_was_measured_on():
    text = "model: mixtral-8x7b\ncluster: {{hardware: h200-sxm, links: {{{}}}}}\n"
    assert one(text.format("scale_out_gb_per_s: 25")).cluster.hardware.measured_all_to_all is not None
    assert one(text.format("scale_up_gb_per_s: 100")).cluster.hardware.measured_all_to_all is None


def test_scopes_without_a_model_plan():
    cell = one("scope: {kind: all_to_all, bytes_per_rank: 1MiB}\ncluster: {hardware: h200-sxm, gpus_per_node: 8}\n")
    assert cell.model is None
    assert cell.scope.bytes_per_rank == 2**20
    assert cell.ep == 8


@pytest.mark.parametrize(
    "scope",
    ["layer", "layer_no_router", "model", "train_step", "{kind: grouped_gemm, groups: 4, m: 0, n: 8, k: 8}"],
)
def test_zero_tokens_are_planned(scope):
    cell = one(f"model: mixtral-8x7b\nscope: {scope}\nworkload: {{tokens_per_rank: 0}}\n")
    assert cell.workload.tokens_per_rank == 0


def test_cells_of_engines_to_come_are_planned():
    text = "model: mixtral-8x7b\nrouter: expert_choice\ndispatch: {strategy: bruck, overlap: two_batch}\n"
    text += (
        "balance: {placement: lp, training: bias}\noffload: {tier: nvme}\noptimizer: adamw_fp32\nscope: train_step\n"
    )
    assert one(text).dispatch.strategy == "bruck"


# --- rules between fields


def test_b12_top_k_against_num_experts():
    said = str(refusal(moe(4, 5, 1)))
    assert "top_k 5" in said
    assert "num_experts 4" in said
    assert "top_k" in str(refusal(moe(4, 0, 1)))
    assert one(moe(1, 1, 1)).model.top_k == 1
    assert one(moe(4, 4, 1)).model.top_k == 4


@pytest.mark.parametrize(
    ("experts", "ep", "least"), [(256, 3, 2), (60, 8, 4), (128, 8, 0), (257, 8, 7), (384, 144, 48)]
)
def test_n08_smallest_redundancy(experts, ep, least):
    assert least_redundancy(experts, ep) == least
    assert one(moe(experts, 2, ep, redundant="auto")).balance.placement.redundant_experts == least
    if least:
        said = str(refusal(moe(experts, 2, ep)))
        assert f"num_experts {experts}" in said
        assert f"ep {ep}" in said
        assert f"does is {least}, or auto" in said
    assert experts_per_rank(experts, ep, redundant=least) * ep == experts + least


def test_n08_kimi_k2_with_32_asked():
    text = "model: kimi-k2\ncluster: {base: hgx-h200, nodes: 18}\nparallel: {ep: 144}\n"
    fault = refusal(text + "balance: {placement: {kind: eplb, redundant_experts: 32}}\n").problems[0]
    assert (fault.path, fault.line, fault.value) == ("balance.placement.redundant_experts", 4, 32)
    assert "does is 48" in fault.message


def test_s12_ep_beyond_experts_and_gpus():
    said = str(refusal(moe(8, 2, 16)))
    assert "num_experts 8" in said
    assert "does is 8" in said
    assert one(moe(8, 2, 16, redundant="8")).ep == 16
    said = str(refusal(moe(8, 2, 8, gpus=4)))
    assert "ep 8" in said
    assert "has 4" in said


@pytest.mark.parametrize(("experts", "top_k"), [("null", "2"), ("0", "2"), ("8", "0"), ("0", "0"), ("null", "null")])
def test_s13_a_dense_model_is_refused(experts, top_k):
    error = refusal(moe(experts, top_k, 1))
    assert all("mixture-of-experts model needs num_experts and top_k" in problem.message for problem in error.problems)


def test_s13_one_expert_is_fine():
    assert one(moe(1, 1, 1)).model.num_experts == 1


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("parallel: {ep: 8, ranks: [8]}", "parallel.ranks", "0 to ep - 1 = 7"),
        ("parallel: {ep: 8, ranks: []}", "parallel.ranks", "at least one"),
        ("parallel: {ep: 8, ranks: [1, 1]}", "parallel.ranks", "distinct"),
        ("parallel: {ep: 4, tp: 2, pp: 2}", "parallel.ep", "needs 16 GPUs"),
        ("parallel: {tp: 3}", "parallel.tp", "must divide 8 GPUs"),
        ("parallel: {ep: 8, attn_tp: 3}", "parallel.attn_tp", "must divide ep 8"),
        ("parallel: {ep: 8, dp: 3}", "parallel.dp", "multiple of ep 8"),
        ("parallel: {ep: 4, dp: 12}", "parallel.dp", "needs 12 GPUs"),
        ("router: {kind: sigmoid_group, num_groups: 3}", "router.num_groups", "divide model.num_experts 8"),
        ("router: {kind: sigmoid_group, num_groups: 2, topk_group: 3}", "router.topk_group", "exceeds num_groups 2"),
        ("router: {kind: sigmoid_group, num_groups: 8, topk_group: 1}", "router.topk_group", "leaves 1 experts"),
        ("router: recorded", "router.kind", "trace"),
        ("workload: {layers: 40}", "workload.layers", "moe_layers 32"),
        ("workload: {skew: {kind: hot_rank, rank: 8}}", "workload.skew.rank", "below parallel.ep 8"),
        ("balance: {placement: {redundant_experts: 3}}", "balance.placement.redundant_experts", "(above 3: 8)"),
        ("balance: {placement: {redundant_experts: 100}}", "balance.placement.redundant_experts", "each of ep 8"),
        ("scope: {kind: grouped_gemm, groups: 3, m: 4, n: 8, k: 8}", "scope.m", "divide by groups 3"),
    ],
)
def test_rules_name_the_fields(text, path, words):
    error = refusal(f"model: mixtral-8x7b\ncluster: {{hardware: h200-sxm, gpus_per_node: 8}}\n{text}\n")
    assert [problem.path for problem in error.problems] == [path]
    assert error.problems[0].line == 3
    assert words in error.problems[0].message


def test_one_measured_rank_of_a_larger_group_needs_one_gpu():
    text = "model: deepseek-v3\ncluster: {hardware: h200-sxm}\nparallel: {ep: 8, ranks: [0]}\n"
    assert one(text + "engine: measure\n").measured_ranks == (0,)
    assert "needs 8 GPUs" in str(refusal(text + "engine: hybrid\n"))


def test_a_broken_combination_is_placed_at_its_axis():
    text = "model: mixtral-8x7b\ncluster: {hardware: h200-sxm, gpus_per_node: 8}\nmatrix: {parallel.ep: [1, 3, 8]}\n"
    (problem,) = refusal(text).problems
    assert (problem.line, problem.path, problem.value) == (3, "matrix.parallel.ep[1]", 3)
    assert len(planned(text + "exclude: [{parallel.ep: 3}]\n")) == 2


# --- labels and time


def test_labels_say_what_sets_cells_apart():
    cells = planned("model: mixtral-8x7b\nmatrix: {precision: [bf16, nvfp4], workload.skew: [uniform, power_law]}\n")
    assert list(cell_labels(cells).values()) == ["bf16 uniform", "bf16 power_law", "nvfp4 uniform", "nvfp4 power_law"]
    assert cell_label(cells[3], cells) == "nvfp4 power_law"
    assert cell_label(cells[0]) == "mixtral-8x7b cpu ep1 bf16 128tok flat"


def test_labels_name_any_other_field_that_sets_cells_apart():
    text = "model: mixtral-8x7b\nmatrix: {precision: [bf16, nvfp4], workload.context_tokens: [1024, 4096]}\n"
    assert list(cell_labels(planned(text)).values()) == [
        "bf16 context_tokens=1024",
        "bf16 context_tokens=4096",
        "nvfp4 context_tokens=1024",
        "nvfp4 context_tokens=4096",
    ]
    groups = "model: mixtral-8x7b\ngroups:\n- {measure: {cache: cold}}\n- {measure: {cache: warm}}\n"
    assert len(set(cell_labels(planned(groups)).values())) == 2


def test_labels_are_unique_in_every_suite_and_quick():
    text = product_of({"workload.seed": range(100), "workload.tokens_per_rank": range(20)})
    cells = planned(text)
    begin = time.perf_counter()
    assert len(set(cell_labels(cells).values())) == 2000
    assert time.perf_counter() - begin < 5


def test_estimate_grows_with_measured_budgets():
    text = "model: mixtral-8x7b\nengine: measure\nmatrix: {workload.seed: [1, 2]}\n"
    short, long = (planned(text, overrides=(f"measure.max_seconds={limit}",)) for limit in (1, 9))
    assert estimate_seconds(long) - estimate_seconds(short) == pytest.approx(16)
    assert estimate_seconds(()) == 0
