"""A believable run made of real cells and records, for tests of what reads runs. No product code imports it."""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.run.describe import base_record_fields, infeasible, unsupported
from workbench.spec.cluster import Cluster, Hardware, ScaleOut, ScaleUp
from workbench.spec.dispatch import Balance, Dispatch, Parallel, Placement
from workbench.spec.model import Model
from workbench.spec.precision import PRECISIONS
from workbench.spec.record import Outcome, Record
from workbench.spec.router import SoftmaxTopk
from workbench.spec.scenario import Cell
from workbench.spec.workload import PowerLaw, Uniform, Workload
from workbench.store.progress import append_event
from workbench.store.run_folder import RunFolder, create_run
from workbench.store.writer import Writer

CPU = Hardware(
    name="cpu", vendor="any", device="cpu", bf16_dense_tflops=0.5, memory_gb=24, memory_tb_per_s=0.02,
    scale_up=ScaleUp(gb_per_s=10, domain=8, topology="memory"), scale_out=ScaleOut(gb_per_s=10),
)  # fmt: skip
H200 = Hardware(
    name="h200-sxm", vendor="nvidia", device="cuda", bf16_dense_tflops=989, fp8_dense_tflops=1979, memory_gb=141,
    memory_tb_per_s=4.8, scale_up=ScaleUp(gb_per_s=450, domain=8, topology="switch"), scale_out=ScaleOut(gb_per_s=50),
)  # fmt: skip
ERRORS = {"bf16": 0.004, "fp8_block": 0.037, "nvfp4_w4a16": 0.095, "mxfp4_w4a16": 0.112}
SPEED = {"bf16": 1.0, "fp8_block": 0.62, "nvfp4_w4a16": 0.78, "mxfp4_w4a16": 0.74}
STAGES = (("gate", 0.05), ("quantise", 0.05), ("dispatch", 0.2), ("permute", 0.05), ("gemm1", 0.25),
          ("activation", 0.05), ("gemm2", 0.15), ("unpermute", 0.05), ("combine", 0.15))  # fmt: skip


def make_cell(*, engine: str = "measure", model: str = "deepseek-v3-tiny", precision: str = "bf16",
              strategy: str = "flat", skew: Any = None, nodes: int = 2, gpus_per_node: int = 2,
              hardware: Hardware = CPU, tokens: int = 128, group: str = "measured") -> Cell:  # fmt: skip
    """A planned cell whose id depends on every argument, as a plan's would."""
    name = (
        f"{engine}/{model}/{precision}/{strategy}/{skew or 'uniform'}/{nodes}x{gpus_per_node}/{hardware.name}/{tokens}"
    )
    cluster = Cluster(
        name=hardware.name, hardware=hardware, nodes=nodes, gpus_per_node=gpus_per_node,
        device="cpu" if hardware is CPU else "cuda", memory_bytes=int(hardware.memory_gb * 1e9),
        usd_per_gpu_hour=None, host=None,
    )  # fmt: skip
    shape = Model(name=model, total_layers=4, moe_layers=3, hidden=256, moe_intermediate=128, num_experts=16, top_k=4,
                  router=SoftmaxTopk())  # fmt: skip
    return Cell(
        cell_id=f"{zlib.crc32(name.encode()):08x}", scenario="sample", group=group, model=shape, cluster=cluster,
        parallel=Parallel(ep=nodes * gpus_per_node), precision=PRECISIONS[precision], trace_digest=None,
        workload=Workload(tokens_per_rank=tokens, skew=skew or Uniform()), engine=engine, router=SoftmaxTopk(),
        dispatch=Dispatch(strategy=strategy), balance=Balance(placement=Placement(redundant_experts=0)),
    )  # fmt: skip


def measured_outcome(cell: Cell, *, base_us: float = 1000.0, noise: float = 0.02, samples: int = 40,
                     seed: int = 0, repeats: int = 1, **figures: Any) -> Outcome:  # fmt: skip
    """An ``ok`` outcome whose samples scatter around ``base_us``; the record's statistics are those of the samples.

    They are dealt to ``repeats`` in turn.
    """
    rng = np.random.default_rng([seed, int(cell.cell_id, 16)])
    us = base_us * (1 + noise * rng.standard_normal((cell.ep, samples)))
    slowest = us.max(axis=0)
    record = Record(
        **base_record_fields(cell) | {"status": "ok", "method": "measured", "timer": "wall", "cache": "cold"},
        math_path="emulated" if cell.precision.name != "bf16" else "native", num_samples=samples,
        latency_us=float(np.median(slowest)), latency_p50_us=float(np.median(slowest)),
        latency_p95_us=float(np.quantile(slowest, 0.95)), latency_p99_us=float(np.quantile(slowest, 0.99)),
        latency_ci_low_us=float(np.quantile(slowest, 0.4)), latency_ci_high_us=float(np.quantile(slowest, 0.6)),
        rel_error=ERRORS[cell.precision.name], first_call_us=base_us * 40, comm_fraction=0.35,
        compute_us=base_us * 0.65, dispatch_us=base_us * 0.2, combine_us=base_us * 0.15,
        tokens_per_s=cell.workload.tokens_per_rank * cell.ep / base_us * 1e6, **_traffic(cell), **figures,
    )  # fmt: skip
    return Outcome(record=record, tables=_tables(cell, base_us) | {"samples": _samples(us, repeats)})


def simulated_outcome(cell: Cell, *, base_us: float, comm_fraction: float = 0.3) -> Outcome:
    """An ``ok`` outcome of the simulator: one value, no samples, no error band."""
    record = Record(
        **base_record_fields(cell) | {"status": "ok", "method": "roofline", "math_path": "native"},
        latency_us=base_us, comm_fraction=comm_fraction, compute_us=base_us * (1 - comm_fraction),
        dispatch_us=base_us * comm_fraction / 2, combine_us=base_us * comm_fraction / 2, fits=True,
        tokens_per_s=cell.workload.tokens_per_rank * cell.ep / base_us * 1e6, **_traffic(cell),
    )  # fmt: skip
    return Outcome(record=record, tables=_tables(cell, base_us))


def sample_outcomes() -> Iterator[Outcome]:
    """What the quickstart's two groups end as, and one cell each that is unsupported, infeasible and in error."""
    for model, scale in (("deepseek-v3-tiny", 1.0), ("gpt-oss-tiny", 0.7)):
        for precision, speed in SPEED.items():
            for strategy, factor in (("flat", 1.0), ("node_dedup", 1.12)):
                for skew in (Uniform(), PowerLaw(alpha=1.01)):
                    cell = make_cell(model=model, precision=precision, strategy=strategy, skew=skew)
                    slow = 2 - speed if precision != "bf16" else 1.0
                    skewed = 1.25 if isinstance(skew, PowerLaw) else 1.0
                    yield measured_outcome(cell, base_us=4000 * scale * slow * factor * skewed, repeats=2)
    for nodes in (1, 4, 16):
        for precision in ("bf16", "fp8_block"):
            for strategy, factor in (("flat", 1.3), ("node_dedup", 1.0)):
                cell = _h200(precision=precision, strategy=strategy, nodes=nodes)
                yield simulated_outcome(cell, base_us=300 * SPEED[precision] * factor * nodes**0.25,
                                        comm_fraction=0.2 + 0.02 * nodes)  # fmt: skip
    yield unsupported(_h200(precision="bf16", strategy="bruck", nodes=1), "strategy bruck is not built yet")
    yield infeasible(_h200(precision="bf16", strategy="none", nodes=1), "weights need 1.3 TB, there are 1.1 TB")
    broken = unsupported(make_cell(strategy="none"), "rank 2 died: signal 9")
    yield replace(broken, record=replace(broken.record, status="error"))


def write_sample_run(results_dir: Path, *, name: str = "sample") -> RunFolder:
    """The sample run on disk, through the real Writer, with manifest and progress."""
    manifest = {"scenario_text": "name: sample\n", "command": "moe-workbench run sample",
                "machine": {"cpu": "test processor", "cores": 2}, "versions": {"torch": "2.13.0"},
                "git_commit": "0123abc"}  # fmt: skip
    run = create_run(results_dir, name=name, manifest=manifest)
    outcomes = list(sample_outcomes())
    append_event(run.progress_path, {"event": "run_start", "run_id": run.run_id, "total": len(outcomes)})
    with Writer(run) as writer:
        for done, outcome in enumerate(outcomes, start=1):
            writer.add(outcome)
            record = outcome.record
            event = {"cell_id": record.cell_id, "status": record.status, "latency_us": record.latency_us}
            append_event(run.progress_path, {"event": "cell", "done": done, "total": len(outcomes)} | event)
    append_event(run.progress_path, {"event": "run_end", "status": "finished", "ok": len(outcomes) - 3})
    return run


def _h200(*, precision: str, strategy: str, nodes: int) -> Cell:
    return make_cell(engine="simulate", model="deepseek-v3", precision=precision, strategy=strategy, nodes=nodes,
                     gpus_per_node=8, hardware=H200, group="full size")  # fmt: skip


def _traffic(cell: Cell) -> dict[str, Any]:
    rows = cell.workload.tokens_per_rank * cell.ep * 512
    out = rows * (2 if cell.dispatch.strategy == "flat" else 1) if cell.cluster.nodes > 1 else 0
    skewed = isinstance(cell.workload.skew, PowerLaw)
    return {"scale_up_bytes": rows * 2, "scale_out_bytes": out, "wire_bytes": rows * 2 + out,
            "load_max_over_mean": 2.4 if skewed else 1.2, "peak_memory_bytes": 2 * 10**9}  # fmt: skip


def _samples(us: np.ndarray, repeats: int) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "iteration": i, "repeat": i % repeats, "us": float(us[rank, i])}
        for rank, i in np.ndindex(us.shape)
    ]


def _tables(cell: Cell, base_us: float) -> dict[str, list[dict[str, Any]]]:
    traffic = _traffic(cell)
    links = {"self": traffic["scale_up_bytes"] // 2, "scale_up": traffic["scale_up_bytes"],
             "scale_out": traffic["scale_out_bytes"]} if cell.engine == "measure" else {}  # fmt: skip
    stages = []
    for rank in range(min(cell.ep, 4)):
        start = 0.0
        for stage, share in STAGES:
            stages.append({"rank": rank, "stream": "main", "stage": stage, "start_us": start,
                           "duration_us": base_us * share, "bytes": 1000, "flops": 2000})  # fmt: skip
            start += base_us * share
    popularity = np.arange(16, 0, -1) ** (1.0 if isinstance(cell.workload.skew, PowerLaw) else 0.1)
    tokens = np.round(popularity / popularity.sum() * cell.workload.tokens_per_rank * cell.ep * 4).astype(int)
    loads = [{"layer": 0, "step": 0, "kind": "expert", "index": e, "tokens": int(n)} for e, n in enumerate(tokens)]
    per_rank = [int(part.sum()) for part in np.array_split(tokens, cell.ep)]
    loads += [{"layer": 0, "step": 0, "kind": "rank", "index": r, "tokens": n} for r, n in enumerate(per_rank)]
    kinds = {"weights": 10**9, "activations": 3 * 10**8, "dispatch_buffers": 10**8}
    memory = [{"rank": r, "what": what, "bytes": n} for r in range(min(cell.ep, 4)) for what, n in kinds.items()]
    sent = [{"link": f"layer/{link}/out/rank 0", "bytes": size, "busy_us": None} for link, size in links.items()]
    return {"stages": stages, "loads": loads, "memory": memory, "links": sent}
