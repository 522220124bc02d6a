"""One step of a whole model: its MoE layers as ``layer`` prices them, attention and dense parts by roofline.

A step is one micro-batch through all layers. With ``overlap: two_batch`` the exchanges that the MoE layer leaves
exposed hide behind the attention of the other micro-batch. A pipeline of pp stages has ``micro_batches`` under way.

Idealised beside what ``attention`` and ``layer`` say: sampling, scheduling and the host take no time, requests are
always there, and gradients are summed over data-parallel ranks behind the backward as far as it is long enough.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from workbench.simulate.attention import DenseParts, dense_parts, with_backward
from workbench.simulate.compute import Stage
from workbench.simulate.context import Context, attention_layers, context_of
from workbench.simulate.layer import LayerCost, price_layer
from workbench.simulate.links import reduction_links
from workbench.simulate.network import LinkRates, all_reduce_us, link_rates
from workbench.simulate.offload import with_offload
from workbench.simulate.reduction import replicas, training_extra_us
from workbench.simulate.traffic import group_traffic, part_traffics
from workbench.simulate.weights import WIDE_BYTES
from workbench.spec.errors import Unsupported
from workbench.spec.model import Model
from workbench.spec.scenario import Cell, LayerScope
from workbench.workload.sources import source_tokens

MAX_PRICED_LAYERS = 4
"""MoE layers whose routing is drawn; they stand for the others."""


@dataclass(frozen=True)
class ModelStep:
    """Microseconds of a step by part; ``hidden_us`` is what attention hides of the exchanges.

    ``moe`` are the priced MoE layers, each standing for ``layers_each``. ``stage_us`` is the time of the slowest
    pipeline stage, ``extra_us`` what a training step does after its backward.
    """

    moe: tuple[LayerCost, ...]
    layers_each: float
    attention_us: float
    dense_us: float
    head_us: float
    hop_us: float
    hidden_us: float
    extra_us: float
    stage_us: float
    context: Context
    reductions_us: float

    @property
    def moe_us(self) -> float:
        return self.layers_each * sum(cost.latency_us for cost in self.moe)

    @property
    def expert_us(self) -> float:
        """Of the slowest rank's routed experts: what a band is of."""
        return self.layers_each * sum(cost.expert_us for cost in self.moe)

    @property
    def latency_us(self) -> float:
        """One micro-batch through all layers, and what comes after the last."""
        parts = self.moe_us + self.attention_us + self.dense_us + self.head_us + self.hop_us + self.reductions_us
        return parts - self.hidden_us + self.extra_us

    @property
    def message_band_us(self) -> tuple[float, float]:
        """From the latency to both ends of the messages' band."""
        low, high = (self.layers_each * sum(cost.message_band_us[side] for cost in self.moe) for side in (0, 1))
        return low, high

    def part(self, name: str) -> float:
        """One of ``LayerCost.parts_us`` over all MoE layers."""
        return self.layers_each * sum(cost.parts_us[name] for cost in self.moe)


def price_step(cell: Cell, *, max_layers: int = MAX_PRICED_LAYERS) -> ModelStep:
    """The step of a cell of scope ``model`` in its phase.

    Raises Unsupported as ``price_layer`` does, and for a model whose attention is not known.
    """
    model, context = cell.model, context_of(cell)
    if model is None or model.attention is None:
        raise Unsupported("scope model needs a model with its attention written out (model.attention)")
    trains = cell.workload.phase == "train"
    moe, layers_each = _moe_layers(cell, model, max_layers=max_layers)
    halves = 2 if cell.dispatch.overlap.kind == "two_batch" else 1
    dense = dense_parts(
        model, cell.precision, cell.cluster.hardware, attn_tp=cell.parallel.attn_tp,
        decode=cell.workload.phase == "decode",
    )  # fmt: skip
    links = link_rates(cell.cluster)
    attention_us, dense_us, head_us = _dense_us(cell, dense, context, halves=halves, trains=trains)
    reduced = model.total_layers + (model.total_layers - model.moe_layers)
    reductions_us = reduced * (2 if trains else 1) * all_reduce_us(
        context.tokens * model.hidden * WIDE_BYTES, num_ranks=cell.parallel.attn_tp,
        links=reduction_links(cell, cell.parallel.attn_tp),
    )  # fmt: skip
    exposed_us = layers_each * sum(max(0.0, cost.exchange_us - cost.hidden_us) for cost in moe)
    hidden_us = min(exposed_us, attention_us) if halves == 2 else 0.0
    moe_us = layers_each * sum(cost.latency_us for cost in moe)
    body_us = moe_us + attention_us + dense_us + reductions_us - hidden_us
    hop_us = (cell.parallel.pp - 1) * _hop_us(cell, context, links) * (2 if trains else 1)
    extra_us = training_extra_us(cell, model, behind_us=body_us * 2 / 3) if trains else 0.0
    share = ceil(model.total_layers / cell.parallel.pp) / model.total_layers
    return ModelStep(
        tuple(moe), layers_each, attention_us, dense_us, head_us, hop_us, hidden_us, extra_us,
        stage_us=body_us * share + head_us, context=context, reductions_us=reductions_us,
    )  # fmt: skip


def moe_cell(cell: Cell) -> Cell:
    """One MoE layer of the model's step."""
    kind = "train_step" if cell.workload.phase == "train" else "layer"
    return cell.model_copy(update={"scope": LayerScope(kind=kind), "optimizer": "none"})


def _moe_layers(cell: Cell, model: Model, *, max_layers: int) -> tuple[list[LayerCost], float]:
    one = moe_cell(cell)
    priced = min(model.moe_layers, max_layers)
    costs = [
        with_offload(
            one, price_layer(one, group_traffic(one, layer=layer), parts=part_traffics(one, layer=layer)), layer=layer
        )
        for layer in range(priced)
    ]
    return costs, model.moe_layers / priced


def _dense_us(
    cell: Cell, dense: DenseParts, context: Context, *, halves: int, trains: bool
) -> tuple[float, float, float]:
    """Attention of all layers, dense MLPs, and embedding with logits; each half of the tokens by itself where two
    micro-batches travel."""
    model = dense.model
    part = Context(context.tokens / halves, context.sequences / halves, context.longest, context.chunks)

    def us(stages: Iterable[Stage]) -> float:
        counted = with_backward(tuple(stages)) if trains else tuple(stages)
        return halves * sum(float(stage.duration_us_R(dense.rates)[0]) for stage in counted)

    attention_us = sum(layers * us(dense.attention(part, window)) for layers, window in attention_layers(model))
    num_dense = model.total_layers - model.moe_layers if model.dense_intermediate else 0
    dense_us = num_dense * us(dense.mlp(part.tokens)) if num_dense else 0.0
    scored = part.sequences if cell.workload.phase == "prefill" else part.tokens
    return attention_us, dense_us, us(dense.head(tokens=part.tokens, scored=scored))


def _hop_us(cell: Cell, context: Context, links: LinkRates) -> float:
    """Activations handed to the next pipeline stage, over the network where a stage fills a node."""
    if cell.parallel.pp == 1:
        return 0.0
    num_bytes = context.tokens / cell.parallel.attn_tp * cell.model.hidden * WIDE_BYTES
    across = cell.ep * cell.parallel.tp * cell.parallel.pp > cell.cluster.gpus_per_node
    rate, latency_us = (
        (links.out_bytes_per_us, links.out_latency_us) if across else (links.up_bytes_per_us, links.up_latency_us)
    )
    return latency_us + num_bytes / rate if rate else 0.0


def tokens_per_step(cell: Cell) -> float:
    """Tokens of all ranks in one micro-batch."""
    return float(source_tokens(cell).sum()) * replicas(cell)


def used_gpus(cell: Cell) -> int:
    """GPUs that the cell's degrees take; the cluster may have more."""
    return cell.ep * cell.parallel.tp * cell.parallel.pp * replicas(cell)


def round_us(cell: Cell, step: ModelStep) -> float:
    """Time in which all ``micro_batches`` take a step: one after another through the slowest stage, in decode never
    less than all stages; prompts and training fill the pipeline and drain it."""
    pp, batches = cell.parallel.pp, cell.workload.micro_batches
    if pp == 1:
        return batches * (step.latency_us - step.extra_us) + step.extra_us
    if cell.workload.phase == "decode":
        return max(batches, pp) * step.stage_us + step.hop_us
    return (batches + pp - 1) * step.stage_us + step.hop_us + step.extra_us
