"""A training step on one GPU: right gradients through the Triton kernels, and in one CUDA graph."""

import time

import pytest
import torch

from tests.run.rank_gang import cell, model
from workbench.measure.clock import clock_for
from workbench.run.context import open_context
from workbench.run.measured_train import measure_train
from workbench.spec.precision import PRECISIONS
from workbench.spec.scenario import LayerScope

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
DELAYED = PRECISIONS["fp8_tensor"].model_copy(update={"scaling": "delayed"})


@pytest.mark.parametrize("precision", [PRECISIONS["bf16"], PRECISIONS["fp8_block"], DELAYED], ids=lambda p: p.name)
@pytest.mark.parametrize("moe", [model(), model(bias=True, shared=False)], ids=["shared", "biases"])
def test_step_on_gpu(precision, moe):
    one = cell(ranks=1, tokens=200, scope=LayerScope(kind="train_step"), moe=moe)
    measure = one.measure.model_copy(update={"graph": True})
    one = one.model_copy(update={"precision": precision, "measure": measure})
    context = open_context(rank=0, world=1, device_type="cuda", ranks_per_node=1)
    report = measure_train(one, context, clock=clock_for(context.device), started=time.monotonic())
    assert report.status == "ok", report.reason
    assert report.grad_rel_error < (0.02 if precision.name == "bf16" else 0.2)
    if precision.name == "bf16":
        assert report.graph, "something in the step waited for the device"
