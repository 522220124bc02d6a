"""The Triton kernels of the backward: against their twins in the interpreter, and compiled for three GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.formats import FORMATS

pytest.importorskip("triton")
from kernels.compile import multiply_instructions
from kernels.compile_backward import backward_kernels

ROOT = Path(__file__).resolve().parents[2]
FLOAT32_SUMS = 1e-5
"""Both sides multiply exactly and sum in float32, in another order."""


@pytest.fixture(scope="module")
def results():
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("interpreted_wgrad.py"))],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_wgrad_equals_its_twin(results):
    for formats, cases in results["wgrad"].items():
        for name, distances in cases.items():
            assert max(distances) <= FLOAT32_SUMS, (formats, name)


def test_dgrad_equals_its_twin_and_leaves_the_tail_zero(results):
    for formats, cases in results["dgrad"].items():
        for name, distances in cases.items():
            assert max(distances[:-1]) <= FORMATS["bf16"].tolerance, (formats, name)
            assert distances[-1] == 0, (formats, name)


def test_turned_groups_hold_the_codes_and_scales_of_the_twin(results):
    assert results["turned"] == {"e4m3_block": True, "e5m2_block": True}


def test_a_whole_layers_gradients_equal_the_torch_path(results):
    assert max(results["layer"].values()) <= FORMATS["bf16"].tolerance


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_bf16_backward_compiles_everywhere(capability):
    start = {80: "mma.sync", 90: "wgmma.", 100: "tcgen05.mma"}[capability]
    jobs = {name: job for name, job in backward_kernels(capability=capability).items() if "bf16" in name}
    assert len(jobs) == 4
    for name, job in jobs.items():
        found = multiply_instructions(job().ptx)
        assert found, name
        assert all(word.startswith(start) for word in found), (name, found)


@pytest.mark.parametrize("capability", [90, 100])
def test_fp8_backward_is_native(capability):
    for name, job in backward_kernels(capability=capability).items():
        if "bf16" in name:
            continue
        built = job()
        found = multiply_instructions(built.ptx)
        if name.startswith("turn"):
            assert not found
        elif capability == 90:
            ending = ".e5m2.e4m3" if "e5m2" in name else ".e4m3.e4m3"
            assert found, name
            assert all(word.startswith("wgmma.") and word.endswith(ending) for word in found), (name, found)
        else:
            assert found, name
            assert all("tcgen05.mma" in word and "f8f6f4" in word for word in found), (name, found)


def test_fp8_backward_is_refused_on_sm_80():
    jobs = backward_kernels(capability=80)
    for name in ("wgrad e5m2 block", "dgrad e5m2 block inf", "turn e4m3 False"):
        with pytest.raises(ValueError, match=r"sm_80: (?s:.)*fp8e4nv not supported"):
            jobs[name]()
