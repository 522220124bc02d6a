"""Which cells may let messages travel beside computation."""

from workbench.spec.errors import Unsupported
from workbench.spec.scenario import MODEL_FREE_SCOPES, Cell
from workbench.workload.traffic import cell_router

PER_TOKEN = ("softmax_topk", "topk_softmax", "sigmoid_topk", "sigmoid_group", "softmax_group", "cosine")
"""Routers that decide for a token by its own logits alone, so that half of the tokens are routed as all are."""


def require_overlap(cell: Cell) -> None:
    """Raises Unsupported, naming the field, for an overlap that this cell cannot have."""
    overlap = cell.dispatch.overlap.kind
    field = f"dispatch.overlap: {overlap}" if overlap != "none" else "dispatch.shared_expert_overlap: true"
    if cell.scope.kind in MODEL_FREE_SCOPES:
        raise Unsupported(f"{field} hides messages behind experts, and scope {cell.scope.kind} has none")
    if cell.dispatch.strategy == "none" or cell.ep == 1:
        why = "dispatch.strategy is none" if cell.dispatch.strategy == "none" else "parallel.ep is 1"
        raise Unsupported(f"{field} hides messages, and none travel: {why}")
    if overlap == "two_batch" and cell.scope.kind != "layer_no_router":
        kind = cell_router(cell).kind
        if kind not in PER_TOKEN:
            known = ", ".join(PER_TOKEN)
            raise Unsupported(f"{field} routes each half by itself, and router {kind} does not; known: {known}")
        if cell.balance.capacity is not None:
            raise Unsupported(f"{field} routes each half by itself, and balance.capacity counts all tokens; use chunk")
