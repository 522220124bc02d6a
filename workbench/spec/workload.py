"""Traffic of a scenario: tokens, skew over experts, and what the numbers look like."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from workbench.spec.base import (
    Count,
    Fraction,
    Frozen,
    NonNegative,
    NonNegativeReal,
    Positive,
    Text,
    kind_from_text,
)


class Uniform(Frozen):
    """Every expert equally popular; tokens still draw at random."""

    kind: Literal["uniform"] = "uniform"


class Balanced(Frozen):
    """Dealt round so that min(E, T * k) experts are touched and loads differ by at most one."""

    kind: Literal["balanced"] = "balanced"


class PowerLaw(Frozen):
    """Loads of experts drawn by inverse CDF of a power law with exponent ``alpha``, for a gate over all experts."""

    kind: Literal["power_law"] = "power_law"
    alpha: Positive = 1.01


class Zipf(Frozen):
    """Popularity of the expert of rank r proportional to r^-alpha."""

    kind: Literal["zipf"] = "zipf"
    alpha: NonNegativeReal = 1.0


class Lognormal(Frozen):
    """Log-normal popularity with the standard deviation ``sigma`` of its logarithm.

    ``max_over_mean`` instead bisects sigma until the most loaded expert is to get that many times the tokens of the
    mean one, for a gate over all experts; one that leaves groups out bends that.
    """

    kind: Literal["lognormal"] = "lognormal"
    sigma: NonNegativeReal = 1.0
    max_over_mean: Positive | None = None


class HotRank(Frozen):
    """The experts of one rank draw ``factor`` times the tokens of another rank's, through the model's own gate."""

    kind: Literal["hot_rank"] = "hot_rank"
    factor: Positive = 4.0
    rank: NonNegative = 0


class RotatingHotRank(Frozen):
    """``hot_rank`` that moves on to the next rank every ``period`` steps, starting at rank 0."""

    kind: Literal["rotating_hot_rank"] = "rotating_hot_rank"
    factor: Positive = 4.0
    period: Count = 1


class ColdRank(Frozen):
    """The experts of one rank draw no token; the others are equally popular."""

    kind: Literal["cold_rank"] = "cold_rank"
    rank: NonNegative = 0


class Topics(Frozen):
    """Tokens of a sequence share a topic, and neighbours in it are alike.

    Each ``sequence_tokens`` neighbouring tokens of a rank are a sequence of one of ``num_topics`` topics. A topic's log
    popularity over experts has the standard deviation ``strength``; the noise of an expert's logit has the
    ``correlation`` between neighbours, and its power between tokens further apart.
    """

    kind: Literal["topics"] = "topics"
    num_topics: Count = 8
    strength: NonNegativeReal = 1.0
    sequence_tokens: Count = 64
    correlation: Fraction = 0.5


class Drift(Frozen):
    """Log popularity of the standard deviation ``sigma``, correlated by exp(-rate) from one step to the next."""

    kind: Literal["drift"] = "drift"
    sigma: NonNegativeReal = 1.0
    rate: NonNegativeReal = 0.1


class Trace(Frozen):
    """Recorded traffic: token-to-expert ids, per-layer counts, or logits."""

    kind: Literal["trace"] = "trace"
    path: Text
    form: Literal["ids", "counts", "logits"]
    layers: tuple[NonNegative, ...] | None = None
    steps: tuple[NonNegative, ...] | None = None


Skew = Annotated[
    Uniform | Balanced | PowerLaw | Zipf | Lognormal | HotRank | RotatingHotRank | ColdRank | Topics | Drift | Trace,
    Field(discriminator="kind"),
    BeforeValidator(kind_from_text),
]


class Gaussian(Frozen):
    """Standard normal."""

    kind: Literal["gaussian"] = "gaussian"


class StudentT(Frozen):
    """Heavy tails."""

    kind: Literal["student_t"] = "student_t"
    degrees: Positive = 4.0


class OutlierChannels(Frozen):
    """A share of the channels is ``factor`` times larger, as transformer activations show."""

    kind: Literal["outlier_channels"] = "outlier_channels"
    fraction: Fraction = 0.005
    factor: Positive = 20.0


class DataFile(Frozen):
    """Activations from a file: .npy, or a .safetensors tensor."""

    kind: Literal["file"] = "file"
    path: Text
    tensor: str | None = None


Data = Annotated[
    Gaussian | StudentT | OutlierChannels | DataFile,
    Field(discriminator="kind"),
    BeforeValidator(kind_from_text),
]


class EvenSources(Frozen):
    """Every rank has ``tokens_per_rank`` tokens."""

    kind: Literal["even"] = "even"


class RaggedSources(Frozen):
    """The busiest rank has ``tokens_per_rank`` tokens, others fewer: ``cv`` is their standard deviation over mean."""

    kind: Literal["ragged"] = "ragged"
    cv: NonNegativeReal = 0.5


class EmptyRank(Frozen):
    """One rank has no tokens, the others ``tokens_per_rank``."""

    kind: Literal["empty_rank"] = "empty_rank"
    rank: NonNegative = 0


Sources = Annotated[
    EvenSources | RaggedSources | EmptyRank,
    Field(discriminator="kind"),
    BeforeValidator(kind_from_text),
]


class Workload(Frozen):
    """Tokens that enter one rank's MoE layer, and how they are spread."""

    phase: Literal["decode", "prefill", "train"] = "decode"
    tokens_per_rank: NonNegative = 128
    layers: Count = 1
    steps: Count = 1
    context_tokens: Count = 2048
    micro_batches: Count = 1
    isl: Count | None = None
    osl: Count | None = None
    sources: Sources = EvenSources()
    skew: Skew = Uniform()
    data: Data = Gaussian()
    seed: NonNegative = 0
