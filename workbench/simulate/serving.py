"""Serving rates of a whole model: one pool that does both phases, or a prefill and a decode pool side by side.

Prompts of ``isl`` tokens come as fast as they are taken, each asks for ``osl`` tokens, and every place of the batch is
taken (closed loop, no queue). Tokens are output tokens, except in a cell of phase prefill or train alone.

- One pool: for every token that its ``tokens_per_rank`` sequences put out, isl / osl prompt tokens are computed between
  decode steps, so a user waits tpot = decode step + sequences * isl / osl * prefill time of a token.
- Two pools: prompts a second are the least of what prefill, decode and the link between them can take. The first token
  waits for the key-value cache of its prompt to travel.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil

from workbench.comm.strategies.low_latency import MOST_TOKENS
from workbench.simulate.context import kv_cache_bytes
from workbench.simulate.memory import MemoryFit, model_fit
from workbench.simulate.model import MAX_PRICED_LAYERS, ModelStep, price_step, round_us, tokens_per_step, used_gpus
from workbench.simulate.traffic import group_traffic
from workbench.spec.catalog import resolve_cluster
from workbench.spec.scenario import Cell

LONGEST_CHUNK = 8192
"""Prompt tokens of an attention group in one step, unless the prefill pool says how many."""


@dataclass(frozen=True)
class Rates:
    """What a cell of scope ``model`` delivers. Times in microseconds, None where the phase has none.

    ``latency_us`` is the step of the pool that the record describes: decode, or the only phase. ``bound_by_pool`` names
    what limits two pools. ``usd_per_hour`` is None where a cluster has no price, ``watts`` where a part has no rating.
    """

    latency_us: float
    ttft_us: float | None
    tpot_us: float | None
    tokens_per_s: float
    gpus: int
    prefill_gpus: int | None
    decode_gpus: int | None
    usd_per_hour: float | None
    watts: float | None
    bound_by_pool: str | None
    step: ModelStep
    prefill: ModelStep | None
    flags: tuple[str, ...] = ()

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens_per_s / self.gpus


def prefill_cell(cell: Cell) -> Cell:
    """The prefill step of a serving cell: of its prefill pool, or of the one pool between decode steps.

    ``low_latency`` holds few tokens, so larger prompts go by ``node_dedup``, as DeepEP's two modes do.
    """
    pool, workload = cell.serving.prefill if cell.serving else None, cell.workload
    parallel = pool.parallel if pool else cell.parallel
    isl = workload.isl or 1
    tokens = ceil(min(isl, LONGEST_CHUNK) * parallel.tp / parallel.attn_tp)
    dispatch = (pool.dispatch if pool else None) or cell.dispatch
    if pool is not None and pool.tokens_per_rank is not None:
        tokens = pool.tokens_per_rank
    if dispatch.strategy == "low_latency" and tokens > MOST_TOKENS * dispatch.overlap.parts:
        dispatch = dispatch.model_copy(update={"strategy": "node_dedup"})
    changes = {
        "parallel": parallel,
        "dispatch": dispatch,
        "workload": workload.model_copy(update={"phase": "prefill", "tokens_per_rank": tokens, "micro_batches": 1}),
        "serving": None,
    }
    if pool is not None:
        own = {"precision": pool.precision, "balance": pool.balance, "kernel": pool.kernel}
        changes |= {name: value for name, value in own.items() if value is not None}
        changes["cluster"] = resolve_cluster(pool.cluster)
    return cell.model_copy(update=changes)


def serves(cell: Cell) -> bool:
    """Whether the cell takes prompts and puts out tokens; otherwise it is steps of one phase."""
    workload = cell.workload
    return cell.serving is not None or bool(workload.phase == "decode" and workload.isl and workload.osl)


def price_serving(
    cell: Cell, *, max_layers: int = MAX_PRICED_LAYERS, price: Callable[..., ModelStep] = price_step
) -> Rates:
    """Rates of a cell of scope ``model``; ``price`` prices a step. Raises Unsupported as ``price_step`` does."""
    if not serves(cell):
        return _one_phase(cell, price(cell, max_layers=max_layers))
    before = prefill_cell(cell)
    steps = price(cell, max_layers=max_layers), price(before, max_layers=max_layers)
    return _two_pools(cell, before, *steps) if cell.serving else _one_pool(cell, before, *steps)


def _one_phase(cell: Cell, step: ModelStep) -> Rates:
    phase, taken_us, batches = cell.workload.phase, round_us(cell, step), cell.workload.micro_batches
    return Rates(
        latency_us=step.latency_us if batches == 1 and cell.parallel.pp == 1 else taken_us,
        ttft_us=step.context.chunks * step.latency_us if phase == "prefill" else None,
        tpot_us=taken_us if phase == "decode" else None,
        tokens_per_s=tokens_per_step(cell) * batches / taken_us * 1e6 if taken_us else 0.0,
        gpus=used_gpus(cell),
        prefill_gpus=None,
        decode_gpus=None,
        **_costs(cell),
        bound_by_pool=None,
        step=step,
        prefill=None,
    )


def _one_pool(cell: Cell, before: Cell, step: ModelStep, prefill: ModelStep) -> Rates:
    workload = cell.workload
    assert workload.isl
    assert workload.osl
    decode_us, batches = round_us(cell, step), workload.micro_batches
    token_us = round_us(before, prefill) / before.workload.tokens_per_rank
    tpot_us = decode_us + workload.tokens_per_rank * batches * workload.isl / workload.osl * token_us
    chunks = prefill.context.chunks
    return Rates(
        latency_us=decode_us,
        ttft_us=chunks * prefill.latency_us + (chunks - 0.5) * decode_us,
        tpot_us=tpot_us,
        tokens_per_s=tokens_per_step(cell) * batches / tpot_us * 1e6,
        gpus=used_gpus(cell),
        prefill_gpus=None,
        decode_gpus=None,
        **_costs(cell),
        bound_by_pool=None,
        step=step,
        prefill=prefill,
        flags=("aggregated", *_changed(cell, before)),
    )


def _two_pools(cell: Cell, before: Cell, step: ModelStep, prefill: ModelStep) -> Rates:
    workload, serving = cell.workload, cell.serving
    assert serving is not None
    assert workload.isl
    assert workload.osl
    tpot_us, batches = round_us(cell, step), workload.micro_batches
    gpus = used_gpus(before) * serving.prefill.replicas, used_gpus(cell) * serving.decode.replicas
    link_bytes_per_us = serving.kv_transfer_gb_per_s * 1e3
    prompt_bytes = kv_prompt_bytes(cell)
    prompts_per_s = {
        "prefill": tokens_per_step(before) / round_us(before, prefill) * 1e6 / workload.isl * serving.prefill.replicas,
        "decode": tokens_per_step(cell) * batches / tpot_us * 1e6 / workload.osl * serving.decode.replicas,
        # Each GPU of the smaller side has a link of its own.
        "kv_transfer": min(gpus) * link_bytes_per_us / prompt_bytes * 1e6,
    }
    least = min(prompts_per_s, key=lambda name: prompts_per_s[name])
    travel_us = prompt_bytes / cell.parallel.attn_tp / link_bytes_per_us
    costs = [_costs(one, count=count) for one, count in zip((before, cell), gpus, strict=True)]
    return Rates(
        latency_us=tpot_us,
        ttft_us=prefill.context.chunks * prefill.latency_us + travel_us,
        tpot_us=tpot_us,
        tokens_per_s=prompts_per_s[least] * workload.osl,
        gpus=sum(gpus),
        prefill_gpus=gpus[0],
        decode_gpus=gpus[1],
        **{name: _sum(cost[name] for cost in costs) for name in costs[0]},
        bound_by_pool=least,
        step=step,
        prefill=prefill,
        flags=("disaggregated", f"limit={least}", f"kv_transfer_us={travel_us:.4g}", *_changed(cell, before)),
    )


def kv_prompt_bytes(cell: Cell) -> int:
    """Key-value cache of one prompt over all layers and GPUs."""
    assert cell.model is not None
    assert cell.model.attention is not None
    whole = cell.model_copy(
        update={
            "parallel": cell.parallel.model_copy(update={"tp": 1, "attn_tp": 1, "pp": 1}),
            "workload": cell.workload.model_copy(update={"tokens_per_rank": 1, "osl": 0, "micro_batches": 1}),
        }
    )
    return kv_cache_bytes(whole, cell.model, cell.model.attention)


def serving_fits(cell: Cell) -> dict[str, MemoryFit]:
    """Memory of each pool by name; one pool that does both phases holds the larger buffers of the two."""
    own = model_fit(cell, group_traffic(cell))
    if not serves(cell):
        return {"": own}
    before = prefill_cell(cell)
    other = model_fit(before, group_traffic(before))
    if cell.serving is not None:
        return {"prefill": other, "decode": own}
    larger = {part: max(own.parts[part], other.parts[part]) for part in ("activations", "dispatch_buffers")}
    return {"": MemoryFit(dict(own.parts) | larger, own.capacity_bytes, complete=own.complete)}


def _changed(cell: Cell, before: Cell) -> tuple[str, ...]:
    asked = (cell.serving.prefill.dispatch if cell.serving else None) or cell.dispatch
    same = asked.strategy == before.dispatch.strategy
    return () if same else (f"prefill_strategy={before.dispatch.strategy}",)


def _costs(cell: Cell, *, count: int | None = None) -> dict[str, float | None]:
    gpus, cluster = used_gpus(cell) if count is None else count, cell.cluster
    usd, watts = cluster.usd_per_gpu_hour, cluster.hardware.rated_watts
    return {"usd_per_hour": usd * gpus if usd else None, "watts": watts * gpus if watts else None}


def _sum(values: Iterable[float | None]) -> float | None:
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if len(known) == len(listed) else None
