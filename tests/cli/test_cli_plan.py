"""plan, scenarios, schema and the frame of the command line, as a user types them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from workbench.cli.main import COMMANDS, build_app, main
from workbench.spec.catalog import names, suite_path
from workbench.spec.json_schema import scenario_schema
from workbench.spec.yaml_source import load_yaml

ROOT = Path(__file__).resolve().parents[2]

MANY = list(range(1, 1001))
BAD_FILES = {
    "tab": "name: t\n\tmodel: deepseek-v3\n",
    "syntax": "name: [t\n",
    "empty": "",
    "list": "- a\n",
    "repeated": "name: t\nname: u\nmodel: deepseek-v3\n",
    "boolean": "name: no\nmodel: deepseek-v3\n",
    "misspelt": "name: t\nmodel: deepseek-v3\nprecison: bf16\n",
    "type": "name: t\nmodel: deepseek-v3\nworkload: {tokens_per_rank: many}\n",
    "rule": "name: t\nmodel: deepseek-v3\nparallel: {ep: 16}\n",
    "million": f"model: deepseek-v3\nmatrix: {{workload.seed: {MANY}, workload.steps: {MANY}}}\n",
    "binary": "\x00\x01",
    "recursive": "name: &a [*a]\n",
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_ends_with_two_and_one_message(kind, tmp_path, capfd):
    path = tmp_path / "bad.yaml"
    path.write_text(BAD_FILES[kind])
    assert main(["plan", str(path)]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "bad.yaml" in err
    assert "Traceback" not in err
    assert err.count("\n") == 1


def test_y15_tab_from_the_outside(tmp_path):
    path = tmp_path / "tab.yaml"
    path.write_text("model:\n\tnum_experts: 8\n")
    done = subprocess.run(
        [sys.executable, "-m", "workbench.cli.main", "plan", str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert done.returncode == 2
    assert f"{path}:2:1: tabs are not allowed" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["plan"], ["plan", "nowhere.yaml"], ["plan", "quikstart"], ["plan", "quickstart", "--set", "x"], ["nonsense"],
     ["plan", "quickstart", "--format", "xml"], ["plan", "quickstart", "--search"], ["plan", ""]],
)  # fmt: skip
def test_bad_arguments_end_with_two(arguments, capfd):
    assert main(arguments) == 2
    assert "Traceback" not in capfd.readouterr().err


def test_plan_table_and_json_agree(capfd):
    assert main(["plan", "quickstart"]) == 0
    table = capfd.readouterr().out
    assert main(["plan", "quickstart", "--format", "json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["count"] == len(answer["cells"])
    assert f"{answer['count']} cells" in table
    assert all(cell["cell_id"] in table for cell in answer["cells"])
    labels = [cell["label"] for cell in answer["cells"]]
    assert len(set(labels)) == len(labels)
    assert all(cell["needed_bytes"] > 0 for cell in answer["cells"])


def test_plan_says_what_does_not_fit(tmp_path, capfd):
    path = tmp_path / "s.yaml"
    path.write_text("model: deepseek-v3\ncluster: {hardware: h200-sxm}\nscope: model\n")
    assert main(["plan", str(path)]) == 0
    assert "does not fit" in capfd.readouterr().out
    assert main(["plan", str(path), "--format", "json"]) == 0
    (cell,) = json.loads(capfd.readouterr().out)["cells"]
    assert cell["fits"] is False
    assert cell["shortage_bytes"] == cell["needed_bytes"] - cell["memory_bytes"] > 0


def test_plan_takes_overrides(capfd):
    arguments = ["plan", "quickstart", "--set", "precision=bf16", "--set", "dispatch.strategy=flat", "--format", "json"]
    assert main(arguments) == 0
    cells = json.loads(capfd.readouterr().out)["cells"]
    assert {(cell["precision"], cell["strategy"]) for cell in cells} == {("bf16", "flat")}


def test_scenarios_lists_every_name(capfd):
    assert main(["scenarios"]) == 0
    text = capfd.readouterr().out
    assert main(["scenarios", "--format", "json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    for kind in ("suites", "models", "hardware", "clusters"):
        assert [row["name"] for row in answer[kind]] == list(names(kind))
        assert all(row["description"] for row in answer[kind])
        assert all(name in text for name in names(kind))


def schema_faults(text):
    data = load_yaml(text, "t").data
    return list(jsonschema.Draft202012Validator(scenario_schema()).iter_errors(data))


def test_schema_is_a_schema_and_takes_every_suite(capfd):
    assert main(["schema"]) == 0
    schema = json.loads(capfd.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for name in names("suites"):
        validator.validate(load_yaml(suite_path(name).read_text(), name).data)


@pytest.mark.parametrize(
    "text",
    [
        "model: deepseek-v3\nrouter: switch\nbalance: {placement: eplb}\ncluster: hgx-h200\n",
        "model: {base: deepseek-v3, num_experts: 64}\nprecision: {name: nvfp4, overflow: nan}\n",
        "model: {config: a/config.json}\nparallel: {ranks: [0]}\n",
        "scope: {kind: all_to_all, bytes_per_rank: 1MiB}\ncluster: {hardware: cpu, memory: 80GB}\n",
        "scope: {kind: all_to_all}\nmatrix: {scope.bytes_per_rank: [1KiB, 4096]}\n",
        "model: deepseek-v3\nzip: {workload.seed: [1, 2], workload.skew: [uniform, {kind: zipf}]}\n",
        "model: kimi-k2\ngroups:\n- {matrix: {precision: [bf16]}, exclude: [{precision: bf16}]}\n- engine: measure\n",
        "model: deepseek-v3\ninclude: [{precision: bf16, workload.seed: 3}]\n",
    ],
)
def test_schema_takes_what_the_reader_takes(text):
    assert schema_faults(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "precison: bf16\n",
        "precision: fp8_blok\n",
        "model: deepsek-v3\n",
        "workload: {tokens_per_rank: many}\n",
        "workload: {tokens: 1}\n",
        "router: swich\n",
        "router: {kind: switch, num_groups: 2}\n",
        "cluster: {hardware: h200-smx}\n",
        "balance: {placement: eplp}\n",
        "matrix: {precision: bf16}\n",
        "matrix: {precison: [bf16]}\n",
        "matrix: {precision: [fp8_blok]}\n",
        "groups: [{engine: simulat}]\n",
        "groups: [{groups: []}]\n",
        "scope: {kind: all_to_all, bytes_per_rank: 1 parsec}\n",
    ],
)
def test_schema_refuses_what_the_reader_refuses(text):
    assert schema_faults(text)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capfd):
    assert main([command, "--help"]) == 0
    assert len(capfd.readouterr().out.splitlines()) > 8


def test_main_hides_a_traceback_unless_asked(monkeypatch, capfd):
    def broken(*_, **__):
        raise RuntimeError("something within")

    monkeypatch.setattr("workbench.spec.json_schema.scenario_schema", broken)
    assert main(["schema"]) == 1
    assert "error: RuntimeError: something within" in capfd.readouterr().err
    monkeypatch.setenv("MOE_WORKBENCH_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        main(["schema"])


def test_version_and_commands(capfd):
    assert main(["--version"]) == 0
    assert capfd.readouterr().out.startswith("moe-workbench 0.")
    assert {command.name for command in build_app().registered_commands} == set(COMMANDS)
