"""Which cells the simulator can price, and in words why not the others."""

from workbench.simulate.experts import ESTIMATED_SCOPES, estimators_of
from workbench.simulate.families import priced_kernels
from workbench.simulate.train import gradient_format
from workbench.spec.errors import Unsupported
from workbench.spec.precision import ELEMENT_BITS
from workbench.spec.scenario import MODEL_FREE_SCOPES, Cell
from workbench.workload.overlap import require_overlap

LAYER_SCOPES = ("layer", "layer_no_router")
PRICED_SCOPES = (*LAYER_SCOPES, "train_step", "model")
LATER = "comes with the simulator's later methods"


def unsupported_reason(cell: Cell) -> str | None:
    """Why this cell cannot be priced yet, naming the field; None when it can."""
    return _kernel(cell) or _method(cell) or _scope(cell) or _extras(cell) or _ranks(cell) or _overlap(cell)


def exchange_unsupported_reason(cell: Cell) -> str | None:
    """Why the exchanges of a layer whose compute is measured cannot be priced; None when they can."""
    if cell.scope.kind not in LAYER_SCOPES:
        return f"engine hybrid prices the exchanges of a layer; scope {cell.scope.kind} {LATER}"
    if cell.offload.tier != "none":
        return f"engine hybrid has no offloaded experts; simulate prices offload.tier {cell.offload.tier}"
    return _method(cell) or _scope(cell) or _extras(cell) or _ranks(cell)


def trains(cell: Cell) -> bool:
    """Whether the cell is a training step."""
    return cell.scope.kind == "train_step" or (cell.scope.kind == "model" and cell.workload.phase == "train")


def _method(cell: Cell) -> str | None:
    """Only a layer's experts have rows and constants; what else is forced has none."""
    if cell.method in ("best", "roofline") or cell.scope.kind in ESTIMATED_SCOPES:
        return None
    return f"method {cell.method} prices the experts of a layer; scope {cell.scope.kind} has roofline alone"


def _scope(cell: Cell) -> str | None:
    kind = cell.scope.kind
    if kind not in PRICED_SCOPES + MODEL_FREE_SCOPES:
        return f"scope {kind} {LATER}; layer is there now"
    if kind in PRICED_SCOPES and cell.model is None:
        return f"scope {kind} needs a model"
    if kind == "model" and cell.ep > 1 and cell.dispatch.strategy == "none":
        return (
            f"dispatch.strategy none sends nothing, and the experts of scope model lie on parallel.ep {cell.ep} ranks"
        )
    if kind == "model" and cell.model is not None and cell.model.attention is None:
        return "scope model needs model.attention: its heads, widths and vocabulary"
    return _training(cell) if trains(cell) else None


def _training(cell: Cell) -> str | None:
    """What a measured training step refuses too."""
    precision, gradients = cell.precision, gradient_format(cell.precision)
    formats = {"weights": precision.weights, "activations": precision.activations, "gradients": gradients}
    for name, number in formats.items():
        if ELEMENT_BITS[number.format] < 8:
            return f"training: precision.{name} {number.format} is too narrow to train in"
        if precision.scaling == "delayed" and number.granularity not in ("none", "tensor"):
            return f"training: precision.scaling delayed wants tensor-wide scales, not {number.granularity}"
    return None


def _kernel(cell: Cell) -> str | None:
    if cell.kernel == "ours":
        return None
    if cell.kernel not in priced_kernels():
        return f"kernel {cell.kernel} has no rows to be priced from; known: {', '.join(priced_kernels())}"
    if cell.scope.kind not in ESTIMATED_SCOPES:
        return f"kernel {cell.kernel} has rows of a layer's forward alone, not of scope {cell.scope.kind}"
    if cell.method == "best" and not estimators_of(cell):
        return f"kernel {cell.kernel} has no rows in {cell.precision.name} to be priced from"
    return None


def _extras(cell: Cell) -> str | None:
    if cell.offload.tier != "none" and (trains(cell) or cell.scope.kind in MODEL_FREE_SCOPES):
        return f"offload.tier {cell.offload.tier} is priced for the forward of layers and models alone"
    if cell.optimizer != "none" and not trains(cell):
        return f"optimizer {cell.optimizer} belongs to scope train_step, or to scope model of phase train"
    if cell.goal is not None:
        return "goal is for plan --search, which names the best configuration; run that one without a goal"
    return None


def _overlap(cell: Cell) -> str | None:
    if cell.dispatch.overlap.kind == "none":
        return None
    try:
        require_overlap(cell)
    except Unsupported as refusal:
        return refusal.reason
    return None


def _ranks(cell: Cell) -> str | None:
    for name in ("tp", "attn_tp"):
        degree, per_node = getattr(cell.parallel, name), cell.cluster.gpus_per_node
        if degree > per_node:
            return f"parallel.{name} {degree} spans nodes of {per_node} GPUs, which is not priced"
    return None
