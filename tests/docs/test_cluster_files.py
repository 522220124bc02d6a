"""The files of docs/clusters: in the form that their readers publish, with the versions that this project pins."""

import copy
import json
import re
import shlex
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "docs" / "clusters"
RAY = re.search(r"^ray==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE).group(1)


def load(name):
    return yaml.safe_load((CLUSTERS / name).read_text())


@pytest.fixture
def rayjob_schema():
    return json.loads(Path(__file__).with_name("kuberay_rayjob.schema.json").read_text())


def test_rayjob_has_the_published_form(rayjob_schema):
    job = load("kuberay-rayjob.yaml")
    jsonschema.validate(job, rayjob_schema)
    spec = job["spec"]["rayClusterSpec"]
    assert spec["rayVersion"] == RAY
    assert spec["authOptions"] == {"mode": "token"}
    mounted = {m["name"] for m in spec["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]}
    assert mounted <= {v["name"] for v in spec["headGroupSpec"]["template"]["spec"]["volumes"]}


def test_the_schema_refuses_a_misspelt_field(rayjob_schema):
    job = load("kuberay-rayjob.yaml")
    for path, name in ((("spec",), "entryPoint"), (("spec", "rayClusterSpec"), "authOption")):
        wrong = copy.deepcopy(job)
        place = wrong
        for key in path:
            place = place[key]
        place[name] = "x"
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, rayjob_schema)


def test_ray_up_file_has_the_form_that_ray_itself_checks():
    import ray

    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    config = load("ray-up.yaml")
    jsonschema.validate(config, schema)
    assert config["head_node_type"] in config["available_node_types"]
    assert f'"ray[default]=={RAY}"' in config["setup_commands"][0]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config | {"worker": 1}, schema)


def test_runtime_env_leaves_results_and_environments_behind():
    from ray.runtime_env import RuntimeEnv

    env = load("runtime-env.yaml")
    RuntimeEnv(**env)
    assert {"/results/", "/.venv/", "/.git/"} <= set(env["excludes"])


def test_slurm_script_is_valid_shell_and_passes_workers_only_what_they_know():
    script = CLUSTERS / "slurm.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text().replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if "symmetric-run" in line and not line.startswith("#")]
    before, _, after = line.partition(" -- ")
    options = [word for word in shlex.split(before) if word.startswith("--")]
    assert {"--head", "--port", "--node-ip-address", "--block", "--include-dashboard"}.isdisjoint(options)
    assert shlex.split(after)[:2] == ["moe-workbench", "run"]


def test_every_file_is_named_in_the_guide():
    guide = (ROOT / "docs" / "clusters.md").read_text()
    for path in CLUSTERS.iterdir():
        assert f"clusters/{path.name}" in guide
