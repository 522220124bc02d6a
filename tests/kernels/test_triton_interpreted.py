"""Triton kernels against their torch twins in triton's interpreter, in a process of its own, as it is set early."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.formats import FORMATS
from kernels.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results():
    pytest.importorskip("triton")
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("interpreted_cases.py"))],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("weights_format", ["bf16", "e4m3_block"])
def test_grouped_gemm_equals_its_twin_in_every_tile(results, weights_format):
    """Both round the same float32 sum to BF16 once, so BF16's own tolerance bounds the difference."""
    for name, case in results["gemm"][weights_format].items():
        assert case["distance"] <= FORMATS["bf16"].tolerance, name
        assert case["tail"] == 0, name


def test_block_table_in_one_launch_equals_its_twin(results):
    assert all(results["table"])


def test_c05_offsets_beyond_32_bits(results):
    assert max(results["far_offsets"]) <= FORMATS["bf16"].tolerance


def test_quantiser_gives_the_codes_of_its_twin(results):
    assert results["quantise"] == [True, True, True]


def test_activation_and_combine_equal_their_twins(results):
    assert max(results["activation"]) <= FORMATS["bf16"].tolerance
    assert results["combine"] <= 1e-6


@pytest.mark.parametrize("precision", ["bf16", "fp8_block"])
def test_a_layer_on_triton_equals_the_reference(results, precision):
    recipe = RECIPES[precision]
    allowed = 2 * (FORMATS[recipe.weights].tolerance + FORMATS[recipe.activations].tolerance)
    assert 0 < results["layer"][precision] <= allowed
