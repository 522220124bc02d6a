"""Rules between the fields of one block, each a fault that names the fields and the mend."""

from collections.abc import Iterator

from workbench.spec.block import ReadBlock
from workbench.spec.dispatch import Parallel
from workbench.spec.faults import Fault
from workbench.spec.parallel import experts_per_rank, least_redundancy
from workbench.spec.scenario import MODEL_FREE_SCOPES
from workbench.spec.workload import HotRank, Trace

PLACEMENT = ("balance", "placement", "redundant_experts")
RECORDED_FORMS = ("ids", "counts")


def parallel_faults(read: ReadBlock, parallel: Parallel) -> Iterator[Fault]:
    """Degrees against the GPUs of the cluster, and ranks against the group; ``ep`` and ``dp`` are decided."""
    ep, tp, pp, attn_tp = parallel.ep, parallel.tp, parallel.pp, parallel.attn_tp
    assert ep is not None
    assert parallel.dp is not None
    gpus = read.cluster.num_gpus
    # A measurement of some ranks needs no more GPUs than ranks; every other cell needs its whole group.
    few = read.block.engine == "measure" and parallel.ranks != "all"
    group = len(parallel.ranks) if few else ep
    if group * tp * pp > gpus:
        what = f"{group} measured ranks" if few else f"ep {ep}"
        yield Fault(
            ("parallel", "ep"),
            ep,
            f"{what} * tp {tp} * pp {pp} needs {group * tp * pp} GPUs, the cluster has {gpus} "
            f"(nodes {read.cluster.nodes} * gpus_per_node {read.cluster.gpus_per_node}); lower ep or add nodes",
        )
    if (ep * tp) % attn_tp:
        yield Fault(("parallel", "attn_tp"), attn_tp, f"attn_tp must divide ep {ep} * tp {tp} = {ep * tp}")
    elif (parallel.dp * attn_tp) % (ep * tp):
        yield Fault(
            ("parallel", "dp"),
            parallel.dp,
            f"dp * attn_tp {attn_tp} must be a multiple of ep {ep} * tp {tp} = {ep * tp}; leave dp out",
        )
    elif read.block.parallel.dp is not None and not few and parallel.dp * attn_tp * pp > gpus:
        needed = parallel.dp * attn_tp * pp
        yield Fault(("parallel", "dp"), parallel.dp, f"dp * attn_tp * pp needs {needed} GPUs, the cluster has {gpus}")
    yield from _rank_faults(read, parallel, ep)


def _rank_faults(read: ReadBlock, parallel: Parallel, ep: int) -> Iterator[Fault]:
    if parallel.ranks != "all":
        beyond = [rank for rank in parallel.ranks if rank >= ep]
        if beyond or not parallel.ranks or len(set(parallel.ranks)) < len(parallel.ranks):
            message = f"ranks must be distinct numbers from 0 to ep - 1 = {ep - 1}, at least one, or all"
            yield Fault(("parallel", "ranks"), list(parallel.ranks), message)
    skew = read.block.workload.skew
    if isinstance(skew, HotRank) and skew.rank >= ep:
        yield Fault(("workload", "skew", "rank"), skew.rank, f"rank must be below parallel.ep {ep}")


def model_faults(read: ReadBlock, parallel: Parallel) -> Iterator[Fault]:
    """The model's own numbers against each other and against tp."""
    model = read.model
    if model is None:
        return
    if model.top_k > model.num_experts:
        message = f"top_k {model.top_k} exceeds num_experts {model.num_experts}; a token takes each expert at most once"
        yield Fault(("model", "top_k"), model.top_k, message)
    if model.moe_layers > model.total_layers:
        message = f"moe_layers {model.moe_layers} exceeds total_layers {model.total_layers}"
        yield Fault(("model", "moe_layers"), model.moe_layers, message)
    if model.moe_intermediate % parallel.tp:
        message = f"tp {parallel.tp} must divide model.moe_intermediate {model.moe_intermediate}"
        yield Fault(("parallel", "tp"), parallel.tp, message)
    layers = read.block.workload.layers
    if layers > model.moe_layers:
        message = f"layers {layers} exceeds model.moe_layers {model.moe_layers}"
        yield Fault(("workload", "layers"), layers, message)


def router_faults(read: ReadBlock, router: object) -> Iterator[Fault]:
    """The groups of a router against the experts, and a recorded router against the trace."""
    groups, model = getattr(router, "num_groups", None), read.model
    if groups is not None and model is not None:
        yield from _group_faults(groups, router.topk_group, model.num_experts, model.top_k, _router_place(read))
    skew = read.block.workload.skew
    decided = isinstance(skew, Trace) and skew.form in RECORDED_FORMS
    kind = read.block.router.kind
    if decided and kind not in ("model", "recorded"):
        message = f"a trace of the form {skew.form} decides the experts itself; leave router out, or use logits"
        yield Fault(("router", "kind"), kind, message)
    if kind == "recorded" and not decided:
        yield Fault(
            ("router", "kind"), kind, "router recorded needs workload.skew of kind trace with form ids or counts"
        )


def _group_faults(groups: int, kept: int, experts: int, top_k: int, place: tuple[str, ...]) -> Iterator[Fault]:
    if experts % groups:
        yield Fault((*place, "num_groups"), groups, f"num_groups {groups} must divide model.num_experts {experts}")
    elif kept > groups:
        yield Fault((*place, "topk_group"), kept, f"topk_group {kept} exceeds num_groups {groups}")
    elif top_k > kept * experts // groups:
        reach = kept * experts // groups
        message = (
            f"topk_group {kept} of num_groups {groups} leaves {reach} experts for model.top_k {top_k}; raise topk_group"
        )
        yield Fault((*place, "topk_group"), kept, message)


def _router_place(read: ReadBlock) -> tuple[str, ...]:
    return ("model", "router") if read.block.router.kind == "model" else ("router",)


def placement_faults(read: ReadBlock, ep: int, redundant: int) -> Iterator[Fault]:
    """Expert slots against the ranks of the group, with the smallest redundancy that mends it."""
    if read.model is None or read.block.scope.kind in MODEL_FREE_SCOPES:
        return
    experts = read.model.num_experts
    if redundant > experts * (ep - 1):
        message = f"redundant_experts {redundant} is more than a copy of all {experts} experts on each of ep {ep} ranks"
        yield Fault(PLACEMENT, redundant, message)
        return
    try:
        experts_per_rank(experts, ep, redundant=redundant)
    except ValueError:
        least = least_redundancy(experts, ep)
        mend = redundant + least_redundancy(experts + redundant, ep)
        above = f" (above {redundant}: {mend})" if mend != least else ""
        message = (
            f"parallel.ep {ep} does not divide model.num_experts {experts} + redundant_experts {redundant}; "
            f"the smallest redundant_experts that does is {least}{above}, or auto"
        )
        yield Fault(PLACEMENT if redundant else ("parallel", "ep"), redundant or ep, message)


def scope_faults(read: ReadBlock) -> Iterator[Fault]:
    """A grouped GEMM splits its rows evenly; a training step is of the phase train."""
    scope, workload = read.block.scope, read.block.workload
    if scope.kind == "train_step" and "phase" in workload.model_fields_set and workload.phase != "train":
        message = f"scope train_step is of phase train, not {workload.phase}; leave workload.phase out"
        yield Fault(("workload", "phase"), workload.phase, message)
    if scope.kind == "grouped_gemm" and scope.m % scope.groups:
        yield Fault(
            ("scope", "m"), scope.m, f"m {scope.m} must divide by groups {scope.groups}: it counts rows of all groups"
        )
