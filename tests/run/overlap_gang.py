"""What ranks of a real gang see of overlapped layers: run by ``tests.run.rank_gang.run_ranks``."""

import time
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist

from tests.run.rank_gang import cell, model
from workbench.comm.payload import combine_row_bytes, dispatch_row_bytes
from workbench.comm.transport import TorchTransport
from workbench.run.check import layer_limit
from workbench.run.chunks import num_chunks
from workbench.run.layer import LayerRun
from workbench.run.measured import run_rank
from workbench.run.overlapped_layer import OverlappedRun, layer_run
from workbench.run.prepare import prepare_layer
from workbench.run.trace import trace_of
from workbench.run.train_check import gradient_limit
from workbench.run.train_prepare import prepare_train, with_choices
from workbench.run.train_step import TrainRun
from workbench.spec.scenario import LayerScope

CHUNKS = [{"kind": "chunk", "degree": degree} for degree in (1, 2, 3, 8)]
SAME = [
    {"strategy": "flat", "dtype": "bf16"},
    {"strategy": "node_dedup", "dtype": "fp8_block"},
    {"strategy": "flat", "dtype": "nvfp4", "skew": {"kind": "zipf", "alpha": 1.5}, "redundant": 2},
    {"strategy": "two_dh", "sources": {"kind": "empty_rank", "rank": 1}},
    {"strategy": "allgather_reduce_scatter", "sources": {"kind": "ragged", "cv": 0.5}},
    {"strategy": "flat_padded", "sources": {"kind": "ragged", "cv": 0.5}, "tokens": 21},
    {"strategy": "pairwise", "tokens": 21},
]
"""Rows that do not depend on those beside them: outputs are equal bit for bit."""
SLEPT_S = 0.15
GROUP_TIMEOUT_S = 3
CYCLES = 2_000_000
"""What a message waits on a GPU: about a millisecond, longer than the work that must not overtake it."""


class SlowTransport(TorchTransport):
    """Sleeps in proportion to the bytes it is given; raises before its exchange number ``fails_at``."""

    s_per_byte, fails_at, exchanges = 0.0, None, 0

    def exchange_rows(self, rows, send_counts=None, recv_counts=None):
        self._late(rows)
        return super().exchange_rows(rows, send_counts, recv_counts)

    def carry(self, rows, hop):
        self._late(rows)
        return super().carry(rows, hop)

    def carry_back(self, rows, hop):
        self._late(rows)
        return super().carry_back(rows, hop)

    def _late(self, rows):
        self.exchanges += 1
        if self.exchanges == self.fails_at:
            raise ConnectionError("the cable is out")
        if rows.is_cuda:
            torch.cuda._sleep(CYCLES)
        else:
            time.sleep(rows.numel() * self.s_per_byte)


def slow(context, group=None):
    transport = SlowTransport(
        group or dist.group.WORLD, rank=context.rank, world=context.world, topology=context.transport.topology,
        device=context.device,
    )  # fmt: skip
    return replace(context, transport=transport)


def compared(context, **options):
    """Output of the layer and of each overlapped one with the same cell; wire bytes and those of the chunks' plans."""
    whole = prepare_layer(cell(ranks=context.world, **options), context)
    plain, seen = LayerRun(whole.layer), []
    plain()
    for overlap in [*CHUNKS, "two_batch", "none"]:
        for shared_overlap in (False, True) if overlap != "none" else (True,):
            one = cell(ranks=context.world, overlap=overlap, shared_overlap=shared_overlap, **options)
            prepared = prepare_layer(one, context)
            run = layer_run(one, prepared.layer)
            assert isinstance(run, OverlappedRun)
            context.transport.reset()
            run()
            wire = context.transport.reset().wire_bytes
            pipelined = run.y_TH
            for _, stage in run.stages():
                stage()
            seen.append({
                "overlap": overlap,
                "equal": torch.equal(pipelined, plain.y_TH),
                "in_turn": torch.equal(pipelined, run.y_TH),
                "error": float((pipelined - plain.y_TH).float().norm() / plain.y_TH.float().norm().clamp(min=1e-9)),
                "limit": layer_limit(one),
                "wire": wire,
                "planned": sum(_sent_bytes(one, chunk.plan, context.rank) for chunk in prepared.chunks),
                "chunks": (len(prepared.chunks), num_chunks(one, prepared.traffic.tokens_R)),
            })  # fmt: skip
    return seen


def _sent_bytes(one, plan, rank):
    """Bytes that leave a rank in dispatch and combine."""
    legs = [*plan.traffic(dispatch_row_bytes(one)), *plan.combine_traffic(combine_row_bytes(one))]
    return sum(int(sizes[rank].sum() - sizes[rank, rank]) for _, sizes, _ in legs)


def trained(context, asked=CHUNKS[2], **options):
    """Largest difference of any gradient with chunks from that without, relative to the latter's norm; bytes sent."""
    runs = []
    for overlap in ("none", asked):
        one = cell(ranks=context.world, scope=LayerScope(kind="train_step"), overlap=overlap, **options)
        prepared, step = prepare_train(one, context)
        run = TrainRun(with_choices(prepared, step))
        context.transport.reset()
        run()
        runs.append((run.grads, context.transport.reset().wire_bytes, run.y_TH))
    (plain, plain_wire, y_TH), (chunked, wire, chunked_TH) = runs
    pairs = [
        (plain.x_TH, chunked.x_TH), (plain.gate_HE, chunked.gate_HE), (plain.shared.w13, chunked.shared.w13),
        *((getattr(plain.experts, name), getattr(chunked.experts, name)) for name in ("w13", "w2")),
    ]  # fmt: skip
    errors = [float((a.float() - b.float()).norm() / a.float().norm()) for a, b in pairs]
    limit = 1e-5 if one.precision.name == "bf16" else gradient_limit(one, step)
    return {"error": max(errors), "limit": limit, "equal": torch.equal(y_TH, chunked_TH), "wire": (plain_wire, wire)}


def stepped(context):
    """Reports of training steps of several strategies, with and without chunks, checked against autograd."""
    cells = [
        cell(ranks=context.world, scope=LayerScope(kind="train_step"), strategy=name, overlap=overlap, tokens=15)
        for name in ("flat", "bruck", "low_latency", "multilevel_dedup")
        for overlap in ("none", {"kind": "chunk", "degree": 2})
    ]
    return [(one, run_rank(one, context)) for one in cells]


def profiled(context):
    """The first rank's trace of an overlapped layer and of an overlapped step."""
    context = replace(context, profile=True)
    scopes = (LayerScope(), LayerScope(kind="train_step"))
    return [trace_of(context, _traced(cell(ranks=context.world, scope=s, overlap=CHUNKS[1]), context)) for s in scopes]


def _traced(one, context):
    if one.scope.kind == "layer":
        return layer_run(one, prepare_layer(one, context).layer).traced_stages
    return TrainRun(with_choices(*prepare_train(one, context))).traced_stages


def gains(context):
    """Seconds of the slowest rank by degree (None: not overlapped), where messages and experts do nothing but sleep."""
    context, best = slow(context), {}
    for degree in (None, 2, 4):
        overlap = "none" if degree is None else {"kind": "chunk", "degree": degree}
        one = cell(ranks=context.world, tokens=64, overlap=overlap)
        layer = prepare_layer(one, context).layer
        _, ids, _ = _dispatched(layer).received()
        pairs = int((ids >= 0).sum())

        def peer(rows, ids, weights, pairs=pairs):
            time.sleep(SLEPT_S * len(rows) / pairs)
            return rows

        context.transport.s_per_byte = SLEPT_S / (one.workload.tokens_per_rank * 4 * dispatch_row_bytes(one))
        run = layer_run(one, replace(layer, peer=peer, shared=None, adds_shared=False, route=None))
        best[degree] = min(_slowest_s(context, run) for _ in range(4))
        context.transport.s_per_byte = 0.0
    return best


def _dispatched(layer):
    for _, stage in layer.exchange.dispatch_stages(lambda: layer.x_TH):
        stage()
    return layer.exchange


def _slowest_s(context, run):
    context.barrier()
    start = time.perf_counter()
    run()
    return float(context.gather([time.perf_counter() - start]).max())


def broken(context):
    """Rank 1's second dispatch fails: what each rank raises, and after how many seconds."""
    group = dist.new_group(timeout=timedelta(seconds=GROUP_TIMEOUT_S), backend="gloo")
    context = slow(context, group)
    one = cell(ranks=context.world, overlap={"kind": "chunk", "degree": 3})
    run = layer_run(one, prepare_layer(one, context).layer)
    run()
    context.transport.exchanges = 0
    context.transport.fails_at = 2 if context.rank == 1 else None
    start, raised = time.perf_counter(), []
    for _ in range(2):
        try:
            run()
        except Exception as exception:
            raised.append((type(exception).__name__, str(exception), type(exception.__cause__).__name__))
    return raised, time.perf_counter() - start


def observe(context):
    """Everything, the broken group last."""
    same = [compared(context, **options) for options in SAME]
    scaled = compared(context, precision="fp8_tensor")
    few = compared(context, tokens=2) + compared(context, tokens=0)
    steps = [
        trained(context), trained(context, strategy="node_dedup", moe=model(weight_on="input"), dtype="fp8_block"),
        trained(context, strategy="node_dedup", precision="fp8_block"), trained(context, "two_batch"),
    ]  # fmt: skip
    return {
        "same": same, "scaled": scaled, "few": few, "trained": steps, "stepped": stepped(context),
        "profiled": profiled(context),
        "gains": gains(context), "broken": broken(context),
    }  # fmt: skip
