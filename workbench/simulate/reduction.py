"""What data parallelism and the optimizer add to a training step: gradients summed over replicas, weights stepped."""

from math import ceil

from workbench.simulate.compute import rates_of
from workbench.simulate.network import LinkRates, link_rates
from workbench.simulate.train import MASTER_BYTES, STATE_BYTES, expert_elements, shared_elements
from workbench.simulate.weights import FLOAT32_BYTES, dense_elements
from workbench.spec.model import Model
from workbench.spec.precision import ELEMENT_BITS
from workbench.spec.scenario import Cell


def replicas(cell: Cell) -> int:
    """Groups of ep * tp GPUs that hold the same experts."""
    return max(1, (cell.parallel.dp or 0) * cell.parallel.attn_tp // (cell.ep * cell.parallel.tp))


def training_extra_us(cell: Cell, model: Model, *, behind_us: float) -> float:
    """Microseconds after the backward: the sums of gradients that it is too short to hide, and the optimizer.

    Routed experts are summed over their replicas, all else over every data-parallel rank, in float32 by rings.
    """
    layers, links = ceil(model.moe_layers / cell.parallel.pp), link_rates(cell.cluster)
    experts = expert_elements(cell) * layers
    others = shared_elements(cell) * layers + dense_elements(
        model, attn_tp=cell.parallel.attn_tp, pp=cell.parallel.pp
    )  # fmt: skip
    summed_us = _ring_us(cell, links, experts, replicas(cell)) + _ring_us(cell, links, others, cell.parallel.dp or 1)
    return max(0.0, summed_us - behind_us) + _optimizer_us(cell, experts + others)


def _ring_us(cell: Cell, links: LinkRates, elements: int, ranks: int) -> float:
    """All-reduce of float32 gradients; over the network once the ranks are more than a node holds."""
    if ranks == 1:
        return 0.0
    across = ranks * max(1, cell.parallel.attn_tp) > cell.cluster.gpus_per_node
    rate, latency_us = (
        (links.out_bytes_per_us, links.out_latency_us) if across else (links.up_bytes_per_us, links.up_latency_us)
    )
    if not rate:
        return 0.0
    return 2 * latency_us + 2 * (ranks - 1) / ranks * FLOAT32_BYTES * elements / rate


def _optimizer_us(cell: Cell, elements: int) -> float:
    """Gradient read, state and master weights read and written, the weight that is multiplied written."""
    if cell.optimizer == "none":
        return 0.0
    stored, master = ELEMENT_BITS[cell.precision.weights.format] / 8, MASTER_BYTES[cell.optimizer]
    kept = STATE_BYTES[cell.optimizer] + (master if master > stored else 0)
    rates = rates_of(cell.cluster.hardware, cell.precision)
    return rates.launch_us + elements * (FLOAT32_BYTES + 2 * kept + stored) / rates.bytes_per_us
