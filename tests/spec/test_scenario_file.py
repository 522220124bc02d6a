"""Scenario files: groups, axes, overrides, and every fault at once with its place and mend."""

import json

import pytest

from workbench.spec.errors import SpecError
from workbench.spec.scenario_file import load_scenario, parse_scenario

BASE = "name: t\nmodel: deepseek-v3\ncluster: {hardware: h200-sxm, nodes: 4, gpus_per_node: 8}\n"


def faults(text, **options):
    with pytest.raises(SpecError) as refusal:
        parse_scenario(text, file="t.yaml", **options)
    return {(problem.line, problem.path): problem.message for problem in refusal.value.problems}


def raws(text, **options):
    return [raw for group in parse_scenario(text, file="t.yaml", **options).groups for raw, _ in group.points()]


def test_y06_misspelt_keys_get_the_nearest_right_name():
    found = faults(BASE + "quantizaton: nvfp4\nnum_expert: 8\nworkload: {token_per_rank: 1}\n")
    assert "did you mean precision?" in found[4, "quantizaton"]
    assert "did you mean model.num_experts?" in found[5, "num_expert"]
    assert "did you mean tokens_per_rank?" in found[6, "workload.token_per_rank"]
    assert "did you mean" not in faults(f"{BASE}description: text")[4, "description"]
    assert "did you mean num_experts?" in faults("model: {base: deepseek-v3, num_expert: 8}")[1, "model.num_expert"]


@pytest.mark.parametrize("value", ["true", "8.5", "[2]", "'8'", "{}"])
def test_y09_numbers_are_numbers_in_every_field(value):
    found = faults(
        f"model: {{base: deepseek-v3, num_experts: {value}, hidden: {value}}}\n"
        f"workload: {{tokens_per_rank: {value}}}\n"
        f"cluster: {{nodes: {value}}}\n"
        f"measure: {{warmup: {value}}}\n"
        f"scope: {{kind: quantize, rows: {value}, columns: 8}}\n"
    )
    assert {path for _, path in found} == {
        "model.num_experts",
        "model.hidden",
        "workload.tokens_per_rank",
        "cluster.nodes",
        "measure.warmup",
        "scope.rows",
    }
    assert all("number" in message for message in found.values()), found


def test_all_faults_at_once_with_line_path_value_and_mend():
    text = """\
name: t
model: {base: deepsek-v3}
cluster: {hardware: h200-smx, node: 4}
scope: {kind: all_to_al}
workload: {tokens_per_rank: true, skew: {kind: power_lw}, phase: decod}
dispatch: {strategy: node_dedp}
precision: fp8_blok
matrix:
  workload.seed: [1, 1.5, -1]
  workload.sed: [1]
groups:
- engine: simulat
- router: {kind: sigmoid_group, num_group: 2}
"""
    found = faults(text)
    expected = {
        (2, "model.base"): "deepseek-v3",
        (3, "cluster.node"): "nodes",
        (3, "cluster.hardware"): "h200-sxm",
        (4, "scope.kind"): "all_to_all",
        (5, "workload.tokens_per_rank"): "whole number",
        (5, "workload.skew.kind"): "power_law",
        (5, "workload.phase"): "decode",
        (6, "dispatch.strategy"): "node_dedup",
        (7, "precision"): "fp8_block",
        (9, "matrix.workload.seed[1]"): "whole number",
        (9, "matrix.workload.seed[2]"): "at least 0",
        (10, "matrix.workload.sed"): "workload.seed",
        (12, "groups[0].engine"): "simulate",
        (13, "groups[1].router.num_group"): "num_groups",
    }
    assert found.keys() == expected.keys()
    for place, words in expected.items():
        assert words in found[place]


def test_message_shows_file_line_path_and_value():
    with pytest.raises(SpecError) as refusal:
        parse_scenario("name: t\nmodel: deepseek-v3\nworkload: {tokens_per_rank: -1}\n", file="t.yaml")
    assert str(refusal.value) == "t.yaml:3: workload.tokens_per_rank: must be at least 0 (got -1)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("- a\n", "must be a mapping"),
        ("just text", "must be a mapping"),
        (BASE + "matrix: [a]\n", "must be a mapping"),
        (BASE + "matrix: {precision: bf16}\n", "must be a list"),
        (BASE + "matrix: {precision: []}\n", "at least one value"),
        (BASE + "matrix: {precision: [bf16, bf16]}\n", "twice"),
        (BASE + "matrix: {precision: [bf16]}\nzip: {precision: [bf16]}\n", "same field"),
        (BASE + "matrix: {dispatch: [{strategy: flat}], dispatch.strategy: [flat]}\n", "same field"),
        (BASE + "exclude: {precision: bf16}\n", "must be a list"),
        (BASE + "include: [bf16]\n", "must be a mapping"),
        (BASE + "groups: []\n", "must be a list of blocks"),
        (BASE + "groups: [a]\n", "must be a mapping"),
        (BASE + "groups: [{name: a}, {name: a}]\n", "no other group"),
        (BASE + "workload.seed: 1\n", "dotted path"),
        (BASE + "cluster.nodes: 1\n", "dotted path"),
        ("name: 3\nmodel: deepseek-v3\n", "one line of text"),
        ("name: ''\nmodel: deepseek-v3\n", "one line of text"),
        ('name: "two\\nlines"\nmodel: deepseek-v3\n', "one line of text"),
        (f"name: {'n' * 301}\nmodel: deepseek-v3\n", "up to 300 characters"),
        ("name: t\n", "needs a model"),
        ("model: {base: deepseek-v3, config: x.json}\n", "exclude each other"),
        ("model: ../deepseek-v3\n", "unknown model"),
        ("model: 3\n", "catalog name"),
        ("model: deepseek-v3\ncluster: nowhere\n", "unknown cluster"),
        ("model: deepseek-v3\ncluster: {base: nowhere}\n", "unknown cluster"),
        ("model: deepseek-v3\ncluster: {hardware: cpu, device: cuda}\n", "contradict"),
        ("model: deepseek-v3\nworkload: {skew: {kind: trace, path: no.npy, form: ids}}\n", "cannot be read"),
        ("model: deepseek-v3\nworkload: {skew: {alpha: 1}}\n", "needs a kind"),
        ("model: deepseek-v3\nbalance: {capacity: .inf}\n", "finite"),
        ("model: deepseek-v3\nscope: all_to_all\n", "is needed"),
        ("scope: {kind: all_to_all, bytes_per_rank: 1 MB/s}\n", "80GiB"),
    ],
)
def test_refusals_say_why(text, words):
    with pytest.raises(SpecError) as refusal:
        parse_scenario(text, file="t.yaml")
    assert words in str(refusal.value)
    assert len(refusal.value.problems) == 1, str(refusal.value)


def test_groups_share_what_stands_above():
    text = BASE + (
        "workload: {seed: 3, skew: {kind: zipf, alpha: 2.0}}\n"
        "matrix: {precision: [bf16, nvfp4], workload.tokens_per_rank: [1, 2]}\n"
        "groups:\n"
        "- {engine: measure, precision: mxfp8}\n"
        "- {workload: {skew: {kind: hot_rank}}, cluster: cpu-cluster, matrix: {workload.tokens_per_rank: [9]}}\n"
    ).replace("cpu-cluster", "this-machine")
    first, second = parse_scenario(text, file="t.yaml").groups
    assert [raw["precision"] for raw, _ in first.points()] == ["mxfp8", "mxfp8"]
    points = [raw for raw, _ in second.points()]
    assert [raw["workload"]["tokens_per_rank"] for raw in points] == [9, 9]
    assert points[0]["workload"]["skew"] == {"kind": "hot_rank"}
    assert points[0]["workload"]["seed"] == 3
    assert points[0]["cluster"] == "this-machine"


def test_include_appends_and_exclude_matches_partly():
    points = raws(
        BASE
        + "matrix: {precision: [bf16, mxfp8], workload.tokens_per_rank: [1, 2, 3]}\n"
        + "exclude: [{precision: bf16, workload: {tokens_per_rank: 3}}, {workload.tokens_per_rank: 1}]\n"
        + "include: [{precision: nvfp4, workload.tokens_per_rank: 7}]\n"
    )
    got = [(raw["precision"], raw["workload"]["tokens_per_rank"]) for raw in points]
    assert got == [("bf16", 2), ("mxfp8", 2), ("mxfp8", 3), ("nvfp4", 7)]


@pytest.mark.parametrize(
    "rule",
    [
        "{workload.skew: power_law}",
        "{workload.skew.kind: power_law}",
        "{workload: {skew: {kind: power_law, alpha: 1.01}}}",
        "{workload.skew: power_law, dispatch.strategy: flat}",
        "{workload.skew: power_law, model: deepseek-v3, cluster.hardware: h200-sxm, model.num_experts: 256}",
        "{workload.skew.alpha: 1.01}",
    ],
)
def test_exclude_sees_short_forms_defaults_and_catalog(rule):
    points = raws(BASE + f"matrix: {{workload.skew: [uniform, {{kind: power_law}}]}}\nexclude: [{rule}]\n")
    assert [raw["workload"]["skew"] for raw in points] == ["uniform"]


def test_exclude_that_matches_nothing_drops_nothing():
    assert len(raws(BASE + "matrix: {workload.seed: [1, 2]}\nexclude: [{precision: nvfp4}, {workload.seed: 3}]\n")) == 2


def test_exclude_of_two_zipped_fields_needs_both_at_one_step():
    text = BASE + "zip: {workload.seed: [1, 2, 3], workload.steps: [1, 1, 2]}\n"
    assert len(raws(text + "exclude: [{workload.seed: 1, workload.steps: 2}]\n")) == 3
    assert len(raws(text + "exclude: [{workload.seed: 3, workload.steps: 2}]\n")) == 2


def test_zip_steps_together_and_one_value_repeats():
    points = raws(BASE + "zip: {workload.tokens_per_rank: [1, 2], precision: [bf16, nvfp4], workload.seed: [5]}\n")
    got = [(raw["workload"]["tokens_per_rank"], raw["precision"], raw["workload"]["seed"]) for raw in points]
    assert got == [(1, "bf16", 5), (2, "nvfp4", 5)]


def test_y13_zip_of_unequal_lengths_names_both():
    found = faults("model: deepseek-v3\nzip: {model.num_experts: [8, 64, 256], model.top_k: [2, 8]}\n")
    (message,) = found.values()
    assert "model.num_experts has 3" in message
    assert "model.top_k has 2" in message


def test_set_lays_values_over_every_group_and_pins_axes():
    text = BASE + "matrix: {precision: [bf16, nvfp4]}\ngroups:\n- engine: measure\n- workload: {seed: 4}\n"
    points = raws(text, overrides=("precision=mxfp8", "workload.seed=1e1", "dispatch={strategy: node_dedup}"))
    assert [(raw["precision"], raw["workload"]["seed"]) for raw in points] == [("mxfp8", 10), ("mxfp8", 10)]
    assert all(raw["dispatch"] == {"strategy": "node_dedup"} for raw in points)


def test_set_reaches_matrix_and_lists():
    text = BASE + "matrix: {workload.seed: [1, 2, 3]}\ninclude: [{workload.seed: 9}]\n"
    points = raws(text, overrides=("matrix.workload.seed=[7, 8]", "include=[]", "name=other"))
    assert [raw["workload"]["seed"] for raw in points] == [7, 8]
    assert parse_scenario(text, file="t.yaml", overrides=("name=other",)).name == "other"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("precision", "path=value"),
        ("=3", "path=value"),
        ("precison=bf16", "did you mean precision?"),
        ("workload.tokens_per_rnk=3", "did you mean workload.tokens_per_rank?"),
        ("precision=fp8_blok", "did you mean fp8_block?"),
        ("workload.seed=no", "quotes"),
        ("workload.seed=[1", "not valid YAML"),
        ("groups=[]", "unknown path"),
        ("exclude.precision=bf16", "set whole"),
    ],
)
def test_bad_overrides_name_set(override, words):
    with pytest.raises(SpecError) as refusal:
        parse_scenario(BASE, file="t.yaml", overrides=(override,))
    assert words in str(refusal.value)
    assert str(refusal.value).startswith("--set")


@pytest.mark.parametrize("name", ["google/gemma-2-9b-it", "../../x", "a:b", "n" * 300, "混合专家 ě"])
def test_r10_a_scenario_may_have_any_name(name):
    assert parse_scenario(f"{BASE}".replace("name: t", f"name: '{name}'"), file="t.yaml").name == name


def test_a_scenario_without_a_name_has_its_files(tmp_path):
    path = tmp_path / "my ě scenario.yaml"
    path.write_text("model: deepseek-v3\r\n")
    assert load_scenario(path).name == "my ě scenario"


def test_a_file_without_an_end_is_refused():
    with pytest.raises(SpecError, match="too large"):
        load_scenario("/dev/zero")


def test_config_json_is_found_beside_the_scenario(tmp_path, monkeypatch):
    config = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "config.json").write_text(json.dumps(config))
    scenario = tmp_path / "s.yaml"
    scenario.write_text("model: {config: models/config.json, top_k: 4}\n")
    monkeypatch.chdir("/")
    (group,) = load_scenario(scenario).groups
    assert group.count() == (1, True)
    (tmp_path / "models" / "config.json").write_text("{")
    with pytest.raises(SpecError, match="is not JSON"):
        load_scenario(scenario)


def test_files_that_cannot_be_scenarios(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    (tmp_path / "folder.yaml").mkdir()
    for name, words in {"latin.yaml": "UTF-8", "folder.yaml": "cannot be read", "none.yaml": "No such file"}.items():
        with pytest.raises(SpecError, match=words):
            load_scenario(tmp_path / name)
    with pytest.raises(SpecError, match="did you mean quickstart"):
        load_scenario("quikstart")
