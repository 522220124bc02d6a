"""How tokens travel, where experts live, and how a cell is measured."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from workbench.spec.base import (
    Count,
    Flag,
    Fraction,
    Frozen,
    NonNegative,
    NonNegativeReal,
    Positive,
    Real,
    kind_from_text,
)

StrategyName = Literal[
    "none", "flat", "flat_padded", "pairwise", "bruck", "two_dh", "node_dedup", "multilevel_dedup", "packed",
    "low_latency", "allgather_reduce_scatter", "balanced_stages",
]  # fmt: skip
WireDtype = Literal["bf16", "fp8_block", "mxfp8", "nvfp4"]


class NoOverlap(Frozen):
    kind: Literal["none"] = "none"

    @property
    def parts(self) -> int:
        """Exchanges that the tokens are spread over."""
        return 1


class ChunkOverlap(Frozen):
    """Dispatch, experts and combine pipelined over ``degree`` chunks of the tokens."""

    kind: Literal["chunk"] = "chunk"
    degree: Annotated[Count, Field(le=8)] = 2

    @property
    def parts(self) -> int:
        return self.degree


class TwoBatchOverlap(Frozen):
    """Two micro-batches hide each other's communication."""

    kind: Literal["two_batch"] = "two_batch"

    @property
    def parts(self) -> int:
        return 2


Overlap = Annotated[
    NoOverlap | ChunkOverlap | TwoBatchOverlap, Field(discriminator="kind"), BeforeValidator(kind_from_text)
]


class Dispatch(Frozen):
    """The all-to-all of a layer; dtypes are those of the bytes on the wire.

    ``pairing`` is pairwise's order of peers. ``levels`` are multilevel_dedup's ranks a group from the outermost, nodes
    among them or not: [32, 8] are groups of 4 nodes of 8.
    """

    strategy: StrategyName = "flat"
    pairing: Literal["ring", "xor"] = "ring"
    levels: tuple[Count, ...] | None = None
    dispatch_dtype: WireDtype = "bf16"
    combine_dtype: WireDtype = "bf16"
    overlap: Overlap = NoOverlap()
    shared_expert_overlap: Flag = False
    comm_sms: NonNegative | None = None


class Placement(Frozen):
    """Which rank holds which expert; ``redundant_experts: auto`` is the least number that divides."""

    kind: Literal["linear", "round_robin", "greedy", "eplb", "lp"] = "linear"
    redundant_experts: NonNegative | Literal["auto"] = 0


class Balance(Frozen):
    """``capacity``: factor f of Tutel's meaning; null drops nothing.

    ``training``: how the router is balanced over ``workload.steps``, of which the last is then measured and priced, at
    ``rate``: the bias's gamma, or the auxiliary loss's coefficient times the learning rate; the published one if left
    out. ``reinforcement`` makes experts collapse: an expert's logit grows by it each step where it has twice the mean
    load.
    """

    capacity: Real | None = None
    training: Literal["none", "aux_loss", "bias"] = "none"
    rate: Positive | None = None
    reinforcement: NonNegativeReal = 0.0
    placement: Annotated[Placement, BeforeValidator(kind_from_text)] = Placement()


class Offload(Frozen):
    """Where cold experts live."""

    tier: Literal["none", "host", "nvme"] = "none"
    resident_fraction: Fraction = 1.0
    cache: Literal["none", "lru", "lfu", "pinned"] = "lru"
    prefetch: Flag = False
    compute: Literal["gpu", "cpu"] = "gpu"


class Parallel(Frozen):
    """Degrees of parallelism; ``ep`` left out means all GPUs of the cluster over tp and pp."""

    ep: Count | None = None
    tp: Count = 1
    dp: Count | None = None
    pp: Count = 1
    attn_tp: Count = 1
    ranks: Literal["all"] | tuple[NonNegative, ...] = "all"


class Measure(Frozen):
    """When a measurement is good enough: the interval is narrow, or the time is up."""

    warmup: NonNegative = 10
    min_samples: Count = 30
    max_relative_ci: Positive = 0.02
    max_seconds: Positive = 5.0
    cache: Literal["cold", "warm"] = "cold"
    graph: Flag = True
