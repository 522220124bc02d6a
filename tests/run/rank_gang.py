"""Real gloo ranks in processes of their own, for the tests of measured cells."""

import multiprocessing
import socket
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist

from kernels.backward.products import wgrad
from workbench.comm import gradients
from workbench.comm.execute import combine, dispatch
from workbench.comm.gradients import by_choice, combine_backward, dispatch_backward
from workbench.comm.transport import TorchTransport
from workbench.run import bare_exchange, exchange, measured_layer, prepare, train_part
from workbench.run.context import RankContext, close_context, open_context
from workbench.run.layer import LayerRun
from workbench.run.measured import run_rank
from workbench.spec.cluster import Cluster, Hardware, ScaleOut, ScaleUp
from workbench.spec.dispatch import Balance, Dispatch, Measure, Parallel, Placement
from workbench.spec.model import Activation, Model
from workbench.spec.precision import PRECISIONS
from workbench.spec.router import SigmoidGroup, SigmoidTopk
from workbench.spec.scenario import Cell, LayerScope
from workbench.spec.workload import Workload

QUICK = Measure(warmup=1, min_samples=3, max_seconds=0.05, cache="warm")
PROCESSOR = Hardware(
    name="cpu", vendor="any", device="cpu", bf16_dense_tflops=1.0, memory_gb=16, memory_tb_per_s=0.05,
    scale_up=ScaleUp(gb_per_s=1, domain=8, topology="memory"), scale_out=ScaleOut(gb_per_s=1),
)  # fmt: skip
ROUTERS = {
    "output": SigmoidGroup(num_groups=4, topk_group=2, routed_scaling=2.5),
    "input": SigmoidTopk(weight_on="input"),
}


def model(*, weight_on: str = "output", bias: bool = False, shared: bool = True, experts: int = 16) -> Model:
    return Model(
        name="test", total_layers=1, moe_layers=1, hidden=256, moe_intermediate=128, num_experts=experts, top_k=4,
        num_shared_experts=int(shared), shared_intermediate=128 if shared else 0, router=ROUTERS[weight_on],
        activation=Activation(kind="clamped_swiglu", interleaved=True) if bias else Activation(), expert_bias=bias,
    )  # fmt: skip


def cell(
    *, ranks: int = 4, tokens: int = 24, precision: str = "bf16", strategy: str = "flat", dtype: str = "bf16",
    measured: tuple[int, ...] | str = "all", scope=None, moe: Model | None = None, skew="uniform", engine="measure",
    overlap="none", shared_overlap: bool = False, sources="even", redundant: int = 0,
) -> Cell:  # fmt: skip
    scope, nodes = scope or LayerScope(), 2 if ranks > 1 else 1
    if scope.kind in ("layer", "layer_no_router", "train_step"):
        moe = moe or model()
    return Cell(
        cell_id="c", scenario="test", group="", model=moe,
        cluster=Cluster(
            name="test", hardware=PROCESSOR, nodes=nodes, gpus_per_node=max(1, ranks // 2),
            device="cpu",
            memory_bytes=2**34, usd_per_gpu_hour=None, host=None,
        ),
        scope=scope, parallel=Parallel(ep=ranks, ranks=measured), precision=PRECISIONS[precision],
        workload=Workload(tokens_per_rank=tokens, skew=skew, sources=sources), trace_digest=None, engine=engine,
        dispatch=Dispatch(
            strategy=strategy, dispatch_dtype=dtype, overlap=overlap, shared_expert_overlap=shared_overlap
        ),
        balance=Balance(placement=Placement(redundant_experts=redundant)), measure=QUICK,
    )  # fmt: skip


def corrupt_combine(plan, transport, rows, *, dtype):
    """One row of what comes back to rank 1 is another token's."""
    values = combine(plan, transport, rows, dtype=dtype)
    if transport.rank == 1:
        values[0] = values[1]
    return values


def corrupt_dispatch(plan, transport, sent):
    """One byte of what rank 2 receives is changed."""
    buffer = dispatch(plan, transport, sent).clone()
    if transport.rank == 2:
        buffer[0, 7] += 32
    return buffer


def failing_prepare(cell, context):
    if context.rank == 3:
        raise ValueError("no weights today")
    return _prepare_layer(cell, context)


def corrupt_combine_backward(plan, transport, grads):
    """One row of the gradients that rank 1's experts get is another token's."""
    rows = combine_backward(plan, transport, grads)
    if transport.rank == 1:
        rows[0] = rows[1]
    return rows


def corrupt_dispatch_backward(plan, transport, rows, weights):
    """Rank 2's tokens get two gradients exchanged."""
    grads, weight_grads = dispatch_backward(plan, transport, rows, weights)
    if transport.rank == 2:
        grads[[0, 1]] = grads[[1, 0]]
    return grads, weight_grads


def corrupt_choices(values, choices, *, top_k):
    """Every pair's weight gradient lands in the column of the choice before."""
    return by_choice(values, choices, top_k=top_k).roll(1, dims=1)


def other_routing(cell, **options):
    """Rank 2 draws other experts for one token."""
    traffic = _route_all(cell, **options)
    if dist.get_rank() != 2:
        return traffic
    ids = traffic.ids.copy()
    ids[3, 5] = (ids[3, 5] + 1) % cell.model.num_experts
    return replace(traffic, ids=ids)


def unsteered(cell):
    """Rank 1 routes with the router that no step has balanced."""
    return None if dist.get_rank() == 1 else _reached(cell)


def other_plan(cell):
    """Rank 1 plans for another seed."""
    seed = int(dist.get_rank() == 1)
    return _bare_plan(cell.model_copy(update={"workload": cell.workload.model_copy(update={"seed": seed})}))


def corrupt_carry(transport, rows, hop):
    """One byte of what rank 2 receives is changed."""
    received = _carry(transport, rows, hop)
    if transport.rank == 2:
        received[-1, -1] += 1
    return received


def false_count(transport, send_counts, row_bytes):
    """Rank 3 counts a row less than it sends to the next rank."""
    counts = list(send_counts)
    if transport.rank == 3 and counts[0]:
        counts[0] -= 1
    _count(transport, counts, row_bytes)


def wrong_counts(transport, send_counts):
    """Every rank hears of one row more than comes from rank 0."""
    counts = _exchange_counts(transport, send_counts)
    return [counts[0] + 1, *counts[1:]]


def slow_product(run):
    """Rank 3 takes 20 ms longer for its first product."""
    if dist.get_rank() == 3:
        time.sleep(0.02)
    _gemm1(run)


def corrupt_wgrad(*arguments, **options):
    """Half the gradient rows of the last slot are lost."""
    grads = wgrad(*arguments, **options)
    grads[-1, ::2] = 0
    return grads


_prepare_layer, _route_all, _bare_plan = prepare.prepare_layer, prepare.route_all, bare_exchange.bare_plan
_reached, _gemm1 = prepare.reached, LayerRun._gemm1
_carry, _count, _exchange_counts = TorchTransport.carry, TorchTransport._count, TorchTransport.exchange_counts
FAULTS = {
    None: (exchange, "combine", combine),
    "combine": (exchange, "combine", corrupt_combine),
    "dispatch": (exchange, "dispatch", corrupt_dispatch),
    "prepare": (measured_layer, "prepare_layer", failing_prepare),
    "routing": (prepare, "route_all", other_routing),
    "unsteered": (prepare, "reached", unsteered),
    "plan": (bare_exchange, "bare_plan", other_plan),
    "carry": (TorchTransport, "carry", corrupt_carry),
    "count": (TorchTransport, "_count", false_count),
    "counts": (TorchTransport, "exchange_counts", wrong_counts),
    "combine.backward": (gradients, "combine_backward", corrupt_combine_backward),
    "dispatch.backward": (gradients, "dispatch_backward", corrupt_dispatch_backward),
    "choices": (train_part, "by_choice", corrupt_choices),
    "wgrad": (train_part, "wgrad", corrupt_wgrad),
    "slow": (LayerRun, "_gemm1", slow_product),
}


def _faulty(one: Cell, context: RankContext, fault: str | None):
    module, name, replacement = FAULTS[fault]
    kept = getattr(module, name)
    setattr(module, name, replacement)
    try:
        return run_rank(one, context)
    finally:
        setattr(module, name, kept)


def _cells(cells: list[tuple[Cell, str | None]], context: RankContext) -> list:
    return [_faulty(one, context, fault) for one, fault in cells]


def _rank(rank: int, world: int, port: int, work):
    torch.set_num_threads(1)
    context = open_context(
        rank=rank, world=world, device_type="cpu", ranks_per_node=max(1, world // 2), timeout_s=60,
        init_method=f"tcp://127.0.0.1:{port}",
    )  # fmt: skip
    done = work(context)
    close_context(context)
    return done


def run_ranks(work, *, world: int) -> list:
    """What ``work(context)``, a function of a module, returns on each rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ProcessPoolExecutor(world, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(_rank, rank, world, port, work) for rank in range(world)]
        return [future.result(timeout=240) for future in futures]


def run_gang(cells: list[tuple[Cell, str | None]], *, world: int = 4) -> list[list]:
    """Reports of every rank by cell, [cells][ranks]; beside each cell the fault that one rank has in it."""
    return [list(reports) for reports in zip(*run_ranks(partial(_cells, cells), world=world), strict=True)]
