"""What a scenario may say of a router, and that each kind it may name is there or decided by a trace."""

import pytest
from pydantic import TypeAdapter, ValidationError

from kernels.routing import ROUTERS
from workbench.spec.router import Router

ADAPTER = TypeAdapter(Router)


def test_every_kind_is_there_or_decided_elsewhere():
    kinds = {member.model_fields["kind"].default for member in Router.__args__[0].__args__}
    assert kinds - set(ROUTERS) == {"model", "recorded"}
    assert set(ROUTERS) <= kinds


@pytest.mark.parametrize(
    "written",
    [
        "hash",
        {"kind": "hash", "vocabulary": 1000},
        {"kind": "batch_prioritized", "capacity_factor": 0},
        {"kind": "batch_prioritized", "capacity_factor": -1.25, "norm_topk": True},
        {"kind": "expert_choice", "max_experts": 4},
        {"kind": "cosine", "temperature": 0.07},
        {"kind": "noisy_topk", "noise": 0},
    ],
)
def test_what_may_be_written(written):
    router = ADAPTER.validate_python(written)
    assert router.kind == (written if isinstance(written, str) else written["kind"])


@pytest.mark.parametrize(
    "written",
    [
        {"kind": "hash", "vocabulary": 0},
        {"kind": "expert_choice", "capacity_factor": 0},
        {"kind": "expert_choice", "max_experts": 0},
        {"kind": "switch", "capacity_factor": -1},
        {"kind": "batch_prioritized", "capacity_factor": float("nan")},
        {"kind": "noisy_topk", "noise": -1},
        {"kind": "cosine", "temperature": 0},
        {"kind": "sigmoid"},
    ],
)
def test_what_may_not(written):
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(written)
