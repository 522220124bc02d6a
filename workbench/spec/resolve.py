"""A read block made a cell: degrees, router and redundancy decided, rules between fields checked."""

from typing import Any

from workbench.spec.block import ReadBlock
from workbench.spec.dispatch import Parallel
from workbench.spec.faults import Fault
from workbench.spec.identity import cell_id
from workbench.spec.parallel import least_redundancy
from workbench.spec.pools import Decided, with_pools
from workbench.spec.router import Recorded
from workbench.spec.rules import (
    RECORDED_FORMS,
    model_faults,
    parallel_faults,
    placement_faults,
    router_faults,
    scope_faults,
)
from workbench.spec.scenario import MODEL_FREE_SCOPES, Cell
from workbench.spec.workload import Trace, Workload

_CARRIED = ("scope", "precision", "kernel", "dispatch", "offload", "optimizer", "serving", "goal", "engine", "method")


def resolve_cell(read: ReadBlock, *, scenario: str, group: str) -> tuple[Cell | None, list[Fault]]:
    """The cell of a block, or every rule that it breaks. With ``serving`` it is that of the decode pool."""
    if read.block.serving is not None:
        read, faults = with_pools(read, _decided)
        if faults:
            return None, faults
    decided, faults = _decided(read)
    if decided is None:
        return None, faults
    parallel, balance = decided
    router, block = _router(read), read.block
    values: dict[str, Any] = {name: getattr(block, name) for name in (*_CARRIED, "measure")} | {
        "scenario": scenario,
        "group": group,
        "model": read.model,
        "cluster": read.cluster,
        "parallel": parallel,
        "router": router,
        "workload": _workload(read),
        "balance": balance,
        "trace_digest": read.trace.digest if read.trace else None,
    }
    digest = read.data_file.digest if read.data_file else None
    return Cell(cell_id=cell_id(values, data_digest=digest), **values), []


def _decided(read: ReadBlock) -> tuple[Decided | None, list[Fault]]:
    """Degrees and redundancy of a block, or every rule that it breaks."""
    parallel, faults = _parallel(read)
    if faults:
        return None, faults
    assert parallel.ep is not None
    redundant, balance = _redundant(read, parallel.ep), read.block.balance
    faults = [
        *parallel_faults(read, parallel),
        *model_faults(read, parallel),
        *router_faults(read, _router(read)),
        *placement_faults(read, parallel.ep, redundant),
        *scope_faults(read),
    ]
    placement = balance.placement.model_copy(update={"redundant_experts": redundant})
    return (None if faults else (parallel, balance.model_copy(update={"placement": placement}))), faults


def _parallel(read: ReadBlock) -> tuple[Parallel, list[Fault]]:
    """Degrees with ``ep`` and ``dp`` decided: ep takes all GPUs over tp and pp, dp what the attention leaves."""
    written, gpus = read.block.parallel, read.cluster.num_gpus
    ep, inner = written.ep, written.tp * written.pp
    if ep is None and gpus % inner:
        message = f"tp {written.tp} * pp {written.pp} must divide {gpus} GPUs when parallel.ep is left out"
        return written, [Fault(("parallel", "tp" if written.tp > 1 else "pp"), inner, message)]
    ep = gpus // inner if ep is None else ep
    dp = written.dp if written.dp is not None else max(1, ep * written.tp // written.attn_tp)
    return written.model_copy(update={"ep": ep, "dp": dp}), []


def _router(read: ReadBlock) -> Any:
    """The router that runs: the model's own where left out; a router of the model's kind starts from the model's."""
    asked, skew = read.block.router, read.block.workload.skew
    if asked.kind == "model" and isinstance(skew, Trace) and skew.form in RECORDED_FORMS:
        return Recorded()
    if read.model is None:
        return asked
    own = read.model.router
    if asked.kind == "model":
        return own
    if asked.kind != own.kind:
        return asked
    return own.model_copy(update={name: getattr(asked, name) for name in asked.model_fields_set})


def _redundant(read: ReadBlock, ep: int) -> int:
    asked = read.block.balance.placement.redundant_experts
    if asked != "auto":
        return asked
    with_experts = read.model is not None and read.block.scope.kind not in MODEL_FREE_SCOPES
    return least_redundancy(read.model.num_experts, ep) if with_experts else 0


def _workload(read: ReadBlock) -> Workload:
    """The workload with the paths of its files made absolute, so that another process finds them.

    A training step is of the phase train where the scenario does not name one.
    """
    workload, changes = read.block.workload, {}
    if read.block.scope.kind == "train_step" and "phase" not in workload.model_fields_set:
        changes["phase"] = "train"
    if read.trace:
        changes["skew"] = workload.skew.model_copy(update={"path": read.trace.path})
    if read.data_file:
        changes["data"] = workload.data.model_copy(update={"path": read.data_file.path})
    return workload.model_copy(update=changes) if changes else workload
