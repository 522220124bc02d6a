"""The fused router kernel: equal to its torch twin in triton's interpreter, and compiled for GPUs that are not here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.backend import ROW_CAPABILITY
from kernels.routing import ROUTERS
from kernels.routing.rules import MAX_FUSED_EXPERTS, ScoreRule

ROOT = Path(__file__).resolve().parents[3]
ROUNDING = 1e-5  # of float32 exponentials and sums in another order
RULES = {
    "mixtral": (ScoreRule(select_by="logits", weigh_by="selected"), 8, 2, False),
    "deepseek-v3": (
        ScoreRule(select_by="sigmoid", weigh_by="sigmoid", norm_topk=True, num_groups=8, topk_group=4),
        256,
        8,
        True,
    ),
    "deepseek-v2": (ScoreRule(select_by="logits", weigh_by="softmax", num_groups=8, topk_group=3), 160, 6, False),
    "groups of 12 in 3": (
        ScoreRule(select_by="sigmoid", weigh_by="sigmoid", num_groups=3, topk_group=2),
        36,
        5,
        True,
    ),
    "one expert": (ScoreRule(select_by="logits", weigh_by="selected"), 1, 1, False),
    "largest": (ScoreRule(select_by="softmax", weigh_by="softmax", norm_topk=True), MAX_FUSED_EXPERTS, 10, True),
}


@pytest.fixture(scope="module")
def results():
    pytest.importorskip("triton")
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    program = Path(__file__).with_name("interpreted_router_cases.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["plain", "tied", "spoilt"])
def test_the_kernel_equals_its_twin(results, kind):
    """b08 and b10 too: rows of NaN, infinities and ties end alike, in the ids exactly."""
    for case, found in results[kind].items():
        assert found["same_ids"], case
        assert found["finite"], case
        assert found["difference"] < ROUNDING, case


def test_the_kernel_has_the_gradient_of_its_twin(results):
    assert results["gradient"] < ROUNDING


def test_strided_and_narrow_logits_route_alike(results):
    assert results["strided"]


def test_what_the_kernel_cannot_take_is_said(results):
    named = ("513 experts", "torch.float64", "top_k 65")
    assert len(results["refused"]) == len(named)
    assert all(name in text for name, text in zip(named, results["refused"], strict=True))


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("name", RULES)
def test_the_kernel_compiles(name, capability):
    pytest.importorskip("triton")
    from kernels.compile import compile_kernel
    from kernels.routing.triton_router import launch_constants, router_kernel

    rule, experts, top_k, has_bias = RULES[name]
    pointers = {"logits_ptr": "*fp32", "bias_ptr": "*fp32", "ids_ptr": "*i32", "weights_ptr": "*fp32"}
    if not has_bias:
        del pointers["bias_ptr"]
    built = compile_kernel(
        router_kernel,
        signature=pointers | {"num_rows": "i32", "stride_t": "i32", "routed_scaling": "fp32"},
        constexprs=launch_constants(rule, num_experts=experts, top_k=top_k)
        | {"plain": False}
        | ({} if has_bias else {"bias_ptr": None}),
        capability=capability,
        multiples_of_16=("stride_t",) if experts % 16 == 0 else (),
        num_warps=1,
    )
    assert capability >= 10 * ROW_CAPABILITY[0] + ROW_CAPABILITY[1]
    assert "st.global" in built.ptx
    assert built.shared_bytes <= 4096, "the lanes of a row lie in one warp"


def test_routing_in_torch_never_imports_triton():
    program = (
        "import sys, torch\n"
        "from kernels.routing import ROUTERS\n"
        "ROUTERS['sigmoid_group'](torch.zeros(3, 8), top_k=2)\n"
        "assert 'triton' not in sys.modules and 'kernels.routing.triton_router' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_triton_without_a_gpu_is_refused():
    with pytest.raises(ValueError, match="needs a GPU"):
        ROUTERS["softmax_topk"](torch.zeros(2, 4), top_k=1, backend="triton")
