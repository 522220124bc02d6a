"""The pipeline over one rank's own copies, on a CPU and, where there is one, on the streams of a GPU."""

from dataclasses import replace

import pytest
import torch

from tests.run.overlap_gang import SlowTransport
from tests.run.rank_gang import cell, model
from workbench.run.chunks import make_chunks
from workbench.run.context import open_context
from workbench.run.exchange import Chunked, Planned
from workbench.run.layer import LayerRun
from workbench.run.overlapped_layer import OverlappedRun
from workbench.run.prepare import place_experts, prepare_layer
from workbench.run.train_prepare import prepare_train, with_choices
from workbench.run.train_step import TrainRun
from workbench.spec.scenario import LayerScope
from workbench.workload.traffic import route_all

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))


def chunked(one, prepared, context, *, count):
    """The layer of one rank with its tokens sent to itself in ``count`` chunks."""
    chunks = make_chunks(one, context, route_all(one), place_experts(one), count=count)
    parts = [Planned(chunk.rank_plan, context.transport, one.dispatch, hidden=one.model.hidden) for chunk in chunks]
    return replace(prepared.layer, exchange=Chunked(parts, [chunk.rows(0) for chunk in chunks])), chunks


def renew(x_TH):
    """Other tokens in the place of these, so that what is left of the pass before would be seen."""
    x_TH.copy_(torch.randn(x_TH.shape))


def far(actual, expected):
    return float((actual.float() - expected.float()).norm() / expected.float().norm())


@pytest.fixture(params=["cpu", GPU])
def context(request):
    opened = open_context(rank=0, world=1, device_type=request.param, ranks_per_node=1)
    transport = SlowTransport(None, rank=0, world=1, topology=opened.transport.topology, device=opened.device)
    transport.s_per_byte = 1e-7
    return replace(opened, transport=transport)


@pytest.mark.parametrize("two_batch", [False, True])
@pytest.mark.parametrize("shared_beside", [False, True])
def test_late_messages_change_nothing(context, two_batch, shared_beside):
    one = cell(ranks=1, tokens=48, moe=model())
    prepared = prepare_layer(one, context)
    plain = LayerRun(chunked(one, prepared, context, count=1)[0])
    layer, _ = chunked(one, prepared, context, count=2 if two_batch else 4)
    run = OverlappedRun(layer, two_batch=two_batch, shared_beside=shared_beside)
    for _ in range(5):
        renew(layer.x_TH)
        run()
        plain()
        assert far(run.y_TH, plain.y_TH) < 0.001
    overlapped = run.y_TH.clone()
    for _, stage in run.stages():
        stage()
    assert torch.equal(overlapped, run.y_TH)


@pytest.mark.parametrize("two_batch", [False, True])
def test_late_messages_change_no_gradient(context, two_batch):
    one = cell(ranks=1, tokens=48, moe=model(), scope=LayerScope(kind="train_step"))
    prepared, step = prepare_train(one, context)
    plain = TrainRun(with_choices(prepared, step))
    layer, chunks = chunked(one, prepared, context, count=2 if two_batch else 3)
    prepared = replace(prepared, layer=layer, chunks=chunks)
    how = {"overlaps": True, "shared_beside": not two_batch, "two_batch": two_batch}
    run = TrainRun(with_choices(prepared, replace(step, layer=layer, **how)))
    for _ in range(5):
        renew(layer.x_TH)
        run()
        plain()
        for got, wanted in ((run.grads, plain.grads), (run.grads.experts, plain.grads.experts)):
            for name in {"x_TH", "gate_HE", "w13", "w2"} & set(vars(got)):
                assert far(getattr(got, name), getattr(wanted, name)) < 0.01
