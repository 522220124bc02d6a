"""Routers as tagged unions. ``ModelRouter`` is a model's own gate; ``Router`` adds those a scenario may ask for."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from workbench.spec.base import Count, Flag, Frozen, NonNegativeReal, Positive, Real, kind_from_text


class _Scaled(Frozen):
    """``weight_on: input`` multiplies the expert's input (Llama-4) instead of its output."""

    routed_scaling: Positive = 1.0
    weight_on: Literal["output", "input"] = "output"


class SoftmaxTopk(_Scaled):
    """Softmax over all experts, then top-k; ``norm_topk`` renormalises the selected weights."""

    kind: Literal["softmax_topk"] = "softmax_topk"
    norm_topk: Flag = True


class TopkSoftmax(_Scaled):
    """Top-k of the logits, then softmax over the selected (GPT-OSS)."""

    kind: Literal["topk_softmax"] = "topk_softmax"
    router_bias: Flag = False


class SigmoidTopk(_Scaled):
    """Top-k of the logits, weight = sigmoid of the selected logit (Llama-4, where it multiplies the input)."""

    kind: Literal["sigmoid_topk"] = "sigmoid_topk"
    norm_topk: Flag = False


class SigmoidGroup(_Scaled):
    """Sigmoid scores, selection biased and limited to the best groups (DeepSeek-V3, Kimi-K2 with one group)."""

    kind: Literal["sigmoid_group"] = "sigmoid_group"
    num_groups: Count = 1
    topk_group: Count = 1
    norm_topk: Flag = True
    correction_bias: Flag = True


class SoftmaxGroup(_Scaled):
    """Softmax scores limited to the best groups by their maximum (DeepSeek-V2)."""

    kind: Literal["softmax_group"] = "softmax_group"
    num_groups: Count = 1
    topk_group: Count = 1
    norm_topk: Flag = False


class Switch(Frozen):
    """Top-1 of the softmax with a capacity per expert (Switch Transformer)."""

    kind: Literal["switch"] = "switch"
    capacity_factor: Positive = 1.25


class NoisyTopk(Frozen):
    """Noisy top-k gating (Shazeer et al. 2017); ``noise`` is the standard deviation of what is added to a logit."""

    kind: Literal["noisy_topk"] = "noisy_topk"
    noise: NonNegativeReal = 1.0


class BatchPrioritized(Frozen):
    """Tokens take capacity in the order of their largest score (V-MoE); the factor has Tutel's meaning.

    Above 0 an expert takes top_k * floor(factor * ceil(T / E)) of a rank's T tokens, at least one; 0 drops nothing;
    below 0 the absolute value counts.
    """

    kind: Literal["batch_prioritized"] = "batch_prioritized"
    capacity_factor: Real = 1.0
    norm_topk: Flag = False


class ExpertChoice(Frozen):
    """Every expert takes its best top_k * capacity_factor * T / E of a rank's T tokens (Zhou et al. 2022).

    ``max_experts`` bounds the experts of one token; null does not.
    """

    kind: Literal["expert_choice"] = "expert_choice"
    capacity_factor: Positive = 1.0
    max_experts: Count | None = None


class Cosine(Frozen):
    """Cosine similarity over a temperature (X-MoE), in a space of ``projection`` dimensions that x is projected to."""

    kind: Literal["cosine"] = "cosine"
    projection: Count = 256
    temperature: Positive = 0.5


class Hash(Frozen):
    """Experts from a hash of the token id, which the workload's skew draws from ``vocabulary`` ids."""

    kind: Literal["hash"] = "hash"
    vocabulary: Count = 131_072


class Random(Frozen):
    """Uniform without replacement, whatever the logits say."""

    kind: Literal["random"] = "random"


class Recorded(Frozen):
    """Experts as a trace recorded them; the trace has the form ids or counts."""

    kind: Literal["recorded"] = "recorded"


class ModelOwn(Frozen):
    """The model's own gate."""

    kind: Literal["model"] = "model"


def _tagged(union):
    return Annotated[union, Field(discriminator="kind"), BeforeValidator(kind_from_text)]


ModelRouter = _tagged(SoftmaxTopk | TopkSoftmax | SigmoidTopk | SigmoidGroup | SoftmaxGroup)
Router = _tagged(
    ModelOwn | SoftmaxTopk | TopkSoftmax | SigmoidTopk | SigmoidGroup | SoftmaxGroup | Switch | NoisyTopk
    | BatchPrioritized | ExpertChoice | Cosine | Hash | Random | Recorded
)  # fmt: skip
