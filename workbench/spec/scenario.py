"""A scenario block as a user writes it, and the planned cell without defaults left in it."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from workbench.spec.base import Bytes, Count, Frozen, NonNegative, Positive, Text, kind_from_text
from workbench.spec.cluster import Cluster, ClusterRef
from workbench.spec.dispatch import Balance, Dispatch, Measure, Offload, Parallel
from workbench.spec.model import Model
from workbench.spec.precision import PRECISIONS, Precision, PrecisionSpec
from workbench.spec.router import ModelOwn, Router
from workbench.spec.workload import Workload

SCHEMA_MAJOR = 1

Engine = Literal["measure", "simulate", "hybrid"]
Method = Literal["best", "measured", "published", "calibrated", "roofline"]
Optimizer = Literal["none", "adamw_fp32", "adamw_bf16", "sgd"]


class LayerScope(Frozen):
    """One MoE layer; ``layer_no_router`` leaves the gate out, ``train_step`` adds the backward."""

    kind: Literal["layer", "layer_no_router", "model", "train_step"] = "layer"


class AllToAllScope(Frozen):
    """The bare exchange; ``bytes_per_rank`` is the send buffer of one rank over all peers."""

    kind: Literal["all_to_all"]
    bytes_per_rank: Bytes


class GroupedGemmScope(Frozen):
    """``groups`` products [m / groups, k] x [k, n]; m counts the rows of all groups."""

    kind: Literal["grouped_gemm"]
    groups: Count
    m: NonNegative
    n: Count
    k: Count


class QuantizeScope(Frozen):
    """Encoding of a rows x columns bf16 tensor into the precision's activation format."""

    kind: Literal["quantize"]
    rows: Count
    columns: Count


Scope = Annotated[
    LayerScope | AllToAllScope | GroupedGemmScope | QuantizeScope,
    Field(discriminator="kind"),
    BeforeValidator(kind_from_text),
]
MODEL_FREE_SCOPES = ("all_to_all", "grouped_gemm", "quantize")


class Pool(Frozen):
    """One of the two pools of disaggregated serving: ``replicas`` of a group of GPUs.

    What it leaves out is the block's. ``tokens_per_rank`` left out is one prompt a rank for prefill, and the workload's
    for decode.
    """

    cluster: Text | ClusterRef
    parallel: Parallel = Parallel()
    replicas: Count = 1
    precision: PrecisionSpec | None = None
    kernel: Text | None = None
    dispatch: Dispatch | None = None
    balance: Balance | None = None
    tokens_per_rank: Count | None = None


class Serving(Frozen):
    """Separate prefill and decode pools. ``kv_transfer_gb_per_s`` is what one GPU sends of key-value caches.

    A planned cell describes its decode pool; the prefill pool stands here with nothing left open.
    """

    prefill: Pool
    decode: Pool
    kv_transfer_gb_per_s: Positive


class Goal(Frozen):
    """What the search maximises, and within which limits; ``space`` lists values per dotted path.

    ``max_memory`` is a GPU's. Tokens are output tokens, or those of a layer or training step.
    """

    maximise: Literal["tokens_per_s_per_gpu", "tokens_per_s_per_user", "tokens_per_s", "tokens_per_usd"] = (
        "tokens_per_s_per_gpu"
    )
    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    max_gpus: Count | None = None
    max_memory: Bytes | None = None
    space: dict[str, tuple[Any, ...]] = Field(default_factory=dict)


class _Body(Frozen):
    """Fields that a written block and a planned cell share."""

    scope: Scope = LayerScope()
    parallel: Parallel = Parallel()
    workload: Workload = Workload()
    router: Router = ModelOwn()
    precision: PrecisionSpec = PRECISIONS["bf16"]
    kernel: Text = "ours"
    dispatch: Dispatch = Dispatch()
    balance: Balance = Balance()
    offload: Offload = Offload()
    optimizer: Optimizer = "none"
    serving: Serving | None = None
    goal: Goal | None = None
    engine: Engine = "simulate"
    method: Method = "best"
    measure: Measure = Measure()


class Block(_Body):
    """One point of a scenario as written: catalog names are still names, lists are still apart."""

    model: Any = None
    cluster: Text | ClusterRef = ClusterRef()


class Cell(_Body):
    """One planned point: names resolved, ``parallel.ep`` and redundancy decided, an id that is stable over runs."""

    cell_id: Text
    scenario: Text
    group: str
    model: Model | None
    cluster: Cluster
    parallel: Parallel
    precision: Precision
    trace_digest: str | None

    @property
    def ep(self) -> int:
        """Ranks of the expert-parallel group."""
        assert self.parallel.ep is not None
        return self.parallel.ep

    @property
    def measured_ranks(self) -> tuple[int, ...]:
        """Ranks of the group that this cell runs for real."""
        return tuple(range(self.ep)) if self.parallel.ranks == "all" else self.parallel.ranks
