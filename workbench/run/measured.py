"""A planned cell measured for real: each rank runs its part, the reports are merged into one record."""

import time
import traceback
from dataclasses import replace

import torch

from workbench.balance.dynamics import is_trained
from workbench.comm.execute import DispatchMismatch
from workbench.measure.clock import clock_for
from workbench.run.check import CheckFailed
from workbench.run.chunks import is_chunked, require_overlap
from workbench.run.context import PeerFailed, RankContext
from workbench.run.measured_layer import measure_layer
from workbench.run.measured_micro import measure_micro
from workbench.run.measured_train import measure_train
from workbench.run.merge import merge_reports
from workbench.run.offloaded import measure_offloaded
from workbench.run.report import PEER_FAILED, RankReport
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import MODEL_FREE_SCOPES, Cell

__all__ = ["merge_reports", "run_rank"]

LAYER_MEASURES = {"layer": measure_layer, "layer_no_router": measure_layer, "train_step": measure_train}
MEASURED_SCOPES = (*LAYER_MEASURES, *MODEL_FREE_SCOPES)
OFFLOADED_SCOPES = ("layer", "layer_no_router")
FORM_FACTORS = ("sxm", "pcie", "nvl72")


def run_rank(cell: Cell, context: RankContext, *, profile: bool = False) -> RankReport:
    """This rank's part of the cell. Every rank of the gang must be called with the same cell.

    What a cell cannot have comes back as a report with its status; an exception of the collectives (a rank is gone,
    a wait timed out) is raised to the caller. With ``profile`` the first rank's report holds a trace.
    """
    context = replace(context, profile=profile)
    mismatch = _wrong_hardware(cell, context)
    if mismatch:
        return RankReport(context.rank, "infeasible", mismatch)
    try:
        _require_supported(cell, context)
        measure = LAYER_MEASURES.get(cell.scope.kind, measure_micro)
        if cell.offload.tier == "host":
            measure = measure_offloaded
        return measure(cell, context, clock=clock_for(context.device), started=time.monotonic())
    except Unsupported as exception:
        return RankReport(context.rank, "unsupported", exception.reason)
    except torch.cuda.OutOfMemoryError as exception:
        return RankReport(context.rank, "infeasible", f"the GPU's memory does not hold this cell: {exception}")
    except PeerFailed as exception:
        return RankReport(context.rank, "error", str(exception), flags=(PEER_FAILED,))
    except (CheckFailed, DispatchMismatch) as exception:
        named = f"rank {context.rank}: "
        return RankReport(context.rank, "error", named + str(exception).removeprefix(named))
    except (ValueError, TypeError, AssertionError, NotImplementedError) as exception:
        last = traceback.extract_tb(exception.__traceback__)[-1]
        place = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
        return RankReport(
            context.rank, "error", f"rank {context.rank}: {type(exception).__name__} at {place}: {exception}"
        )


def _wrong_hardware(cell: Cell, context: RankContext) -> str | None:
    """Why this machine is not the part that the cell names, or None: no figure stands under another part's name."""
    wanted = cell.cluster.hardware.name
    if (wanted == "cpu") != (context.device.type == "cpu"):
        return f"cluster.hardware: {wanted} cannot be measured on a {context.device.type} device"
    words = [word for word in wanted.split("-") if word not in FORM_FACTORS]
    found = context.hardware_name.lower()
    if wanted == "cpu" or all(word in found for word in words):
        return None
    return f"cluster.hardware: {wanted} is asked for, this machine has {context.hardware_name}; name that part"


def _require_supported(cell: Cell, context: RankContext) -> None:
    """Raises Unsupported for what no measurement exists for yet."""
    if cell.scope.kind not in MEASURED_SCOPES:
        raise Unsupported(f"scope: {cell.scope.kind} cannot be measured yet; known: {', '.join(MEASURED_SCOPES)}")
    if is_chunked(cell):
        require_overlap(cell)
    offloaded = cell.offload.tier == "host" and cell.scope.kind in OFFLOADED_SCOPES
    if not offloaded and cell.offload.tier != "none":
        known = f"none can, and host for scope {' and '.join(OFFLOADED_SCOPES)}"
        raise Unsupported(f"offload.tier: {cell.offload.tier} cannot be measured yet; {known}")
    trained = is_trained(cell)
    wanted = {
        "parallel.tp": (cell.parallel.tp, 1),
        "parallel.pp": (cell.parallel.pp, 1),
        "workload.layers": (cell.workload.layers, 1),
        "workload.steps": (1 if offloaded or trained else cell.workload.steps, 1),
        "workload.micro_batches": (cell.workload.micro_batches, 1),
        "balance.training": (cell.balance.training if offloaded else "none", "none"),
        "optimizer": (cell.optimizer, "none"),
        "serving": ("a pair of pools" if cell.serving else "one pool", "one pool"),
        "goal": ("a search" if cell.goal else "a cell by itself", "a cell by itself"),
    }
    if cell.scope.kind != "train_step":
        wanted["precision.scaling"] = (cell.precision.scaling, "current")
    for path, (value, known) in wanted.items():
        if value != known:
            raise Unsupported(f"{path}: {value} cannot be measured yet; {known} can")
