"""Choose the tiles of the fused layer by measuring them on this GPU, and write them down as a table.

E experts, K top-k, T tokens. Every candidate runs in a CUDA graph over warm caches, on three models' layer sizes; a
class of mean rows an expert takes the pair with the least geometric mean of gemm1 + gemm2 over them.
"""

import math
import multiprocessing
import os
import pprint
import statistics
from collections.abc import Callable, Iterable
from dataclasses import astuple
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from kernels.activation import Activation
from kernels.backend import FUSED_CAPABILITY, triton_unsupported
from kernels.grouped_gemm.candidates import candidates
from kernels.grouped_gemm.tiles import Tile
from kernels.moe import ExpertWeights, prepare_weights
from kernels.recipes import RECIPES

PRECISIONS = {"bf16": "bf16", "e4m3_block": "fp8_block", "mxfp8": "mxfp8", "mxfp4": "mxfp4_w4a16",
              "nvfp4": "nvfp4_w4a16"}  # fmt: skip
"""Weight format -> the precision that it is tuned in."""
SIZES = ((7168, 2048, 8, False), (4096, 1536, 8, False), (2880, 2880, 4, True))
"""(hidden, intermediate, top-k, gpt-oss's activation and biases) of DeepSeek-V3, Qwen3-235B and gpt-oss."""
NUM_EXPERTS, FEW_EXPERTS = 64, 8
Size = tuple[int, int, int, bool]
MEAN_ROWS = (1, 4, 16, 32, 64, 128, 256, 512)
Times = dict[tuple[int, Tile], list[float]]


def require_gpu() -> tuple[str, tuple[int, int]]:
    """Name and capability of the GPU; ValueError where there is none."""
    if not torch.cuda.is_available():
        raise ValueError("tune: torch sees no GPU; tuning measures kernels, so it needs one")
    return torch.cuda.get_device_name(), torch.cuda.get_device_capability()


def tune(formats: Iterable[str] = tuple(PRECISIONS), *, say: Callable[[str], None] = print) -> dict[str, Any]:
    """The table of this GPU (see ``kernels.tuned``); a format that it cannot run is left out, and said."""
    name, capability = require_gpu()
    chosen = []
    for weights_format in formats:
        if weights_format not in PRECISIONS:
            raise ValueError(f"tune: {weights_format!r} is not tuned; known: {', '.join(PRECISIONS)}")
        least = FUSED_CAPABILITY[weights_format, RECIPES[PRECISIONS[weights_format]].activations]
        reason = triton_unsupported(least, device_type="cuda", capability=capability)
        if reason:
            say(f"{weights_format}: {reason}")
        else:
            chosen.append(weights_format)
    compile_ahead(chosen)
    tiles = {weights_format: _tune_format(weights_format, say) for weights_format in chosen}
    return {"gpu": name, "date": datetime.now(UTC).date().isoformat(), "versions": _versions(), "tiles": tiles}


def render_table(table: dict[str, Any]) -> str:
    """The table as the module that ``kernels.tuned`` loads."""
    versions = ", ".join(f"{name} {version}" for name, version in table["versions"].items())
    title = f"Tiles measured on {table['gpu']}, {table['date']}, {versions}; written by ``moe-workbench tune``."
    # A number of its own, as infinity is no literal.
    body = pprint.pformat(table, width=110, sort_dicts=False).replace("inf,", 'float("inf"),').replace("'", '"')
    return f'"""{title}"""\n\n# fmt: off\nTABLE = {body}\n'


def write_table(text: str, path: Path) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def _versions() -> dict[str, str]:
    import triton

    return {"torch": torch.__version__, "triton": triton.__version__}


def _tune_format(weights_format: str, say: Callable[[str], None]) -> list[tuple[Any, ...]]:
    measured: dict[int, tuple[Times, Times]] = {rows: ({}, {}) for rows in MEAN_ROWS}
    for size in SIZES:
        experts = _experts(weights_format, size, num_experts=NUM_EXPERTS)
        for mean_rows, times in measured.items():
            _measure(experts, mean_rows, times, top_k=size[2])
        del experts
        torch.cuda.empty_cache()
    rows: list[tuple[Any, ...]] = []
    for at, mean_rows in enumerate(MEAN_ROWS):
        us, first, second = choose_pair(*measured[mean_rows])
        last = at == len(MEAN_ROWS) - 1
        upto = math.inf if last else round(math.sqrt(mean_rows * MEAN_ROWS[at + 1]), 1)
        pair = (astuple(first), astuple(second))
        say(f"{weights_format} up to {upto} rows an expert: {us:.1f} us, gemm1 {pair[0]} gemm2 {pair[1]}")
        if rows and rows[-1][1:] == pair:
            rows.pop()
        rows.append((upto, *pair))
    return rows


def choose_pair(first: Times, second: Times) -> tuple[float, Tile, Tile]:
    """(geometric mean over the sizes, gemm1, gemm2) of the best pair with as many rows a block."""
    pairs = [
        (statistics.geometric_mean([a + b for a, b in zip(one, two, strict=True)]), tile1, tile2)
        for (rows1, tile1), one in first.items()
        for (rows2, tile2), two in second.items()
        if rows1 == rows2 and len(one) == len(two) == max(map(len, first.values()))
    ]
    if not pairs:
        raise ValueError("tune: no pair of tiles ran on every size")
    return min(pairs, key=lambda pair: pair[0])


def _experts(weights_format: str, size: Size, *, num_experts: int) -> ExpertWeights:
    hidden, width, _, gpt_oss = size
    generator = torch.Generator("cuda").manual_seed(1)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16).mul_(scale)

    biases = {}
    if gpt_oss:
        biases = {"bias13": normal(num_experts, 2 * width), "bias2": normal(num_experts, hidden)}
    return prepare_weights(
        normal(num_experts, 2 * width, hidden, scale=hidden**-0.5),
        normal(num_experts, hidden, width, scale=width**-0.5),
        precision=PRECISIONS[weights_format],
        activation=Activation("clamped_swiglu", interleaved=True) if gpt_oss else Activation(),
        **biases,
    )


def _steps(experts: ExpertWeights, mean_rows: int, *, top_k: int) -> Callable[[int, Tile], Callable[[], Any]]:
    """``(1 or 2, tile) -> call`` of gemm1 or gemm2 on routed random tokens."""
    from kernels.fused import quantise_middle, quantise_tokens
    from kernels.grouped_gemm.expert_gemm import expert_gemm
    from kernels.triton_permute import plan_pairs

    num_experts, num_tokens = experts.num_experts, max(1, mean_rows * experts.num_experts // top_k)
    generator = torch.Generator("cuda").manual_seed(mean_rows)
    scores = torch.rand(num_tokens, num_experts, generator=generator, device="cuda")
    weights, ids = scores.topk(top_k, dim=1)
    hidden, width = experts.w2.shape[1:]
    inputs = [torch.randn(n, c, device="cuda").bfloat16() for n, c in ((num_tokens, hidden), (ids.numel(), width))]
    x, h = quantise_tokens(inputs[0], experts), quantise_middle(inputs[1], experts)
    w13, w2 = (experts.packed13, experts.packed2) if experts.is_packed else (experts.w13, experts.w2)

    def step(which: int, tile: Tile) -> Callable[[], Any]:
        plan = plan_pairs(ids.int(), num_experts, block_m=tile.block_m)
        call = {"num_rows": ids.numel()}
        if which == 1:
            call |= {"top_k": top_k, "activation": experts.activation, "bias_EN": experts.bias13}
            return lambda: expert_gemm(x, w13, plan, tile, **call)
        call |= {"bias_EN": experts.bias2, "weights_P": weights.reshape(-1)}
        return lambda: expert_gemm(h, w2, plan, tile, **call)

    return step


def _measure(experts: ExpertWeights, mean_rows: int, times: tuple[Times, Times], *, top_k: int) -> None:
    from triton.runtime.errors import OutOfResources

    step = _steps(experts, mean_rows, top_k=top_k)
    for which, tiles in enumerate(candidates(experts.w13.format, mean_rows), 1):
        for tile in tiles:
            try:
                us = _time_us(step(which, tile), repeats=20 if mean_rows <= 16 else 5)
            except OutOfResources:
                continue
            times[which - 1].setdefault((tile.block_m, tile), []).append(us)


def _time_us(step: Callable[[], Any], *, repeats: int) -> float:
    """Median microseconds of a call over replays of a graph of ``repeats`` calls."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            step()
    samples = []
    for replay in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples += [1e3 * start.elapsed_time(end) / repeats] if replay else []
    return statistics.median(samples)


def compile_ahead(formats: Iterable[str]) -> None:
    """Compile every candidate in processes of their own into Triton's cache; the measuring then finds them there."""
    jobs = [
        (weights_format, size, which, tile)
        for weights_format in formats
        for size in SIZES
        for which in (1, 2)
        for tile in dict.fromkeys(t for rows in MEAN_ROWS for t in candidates(weights_format, rows)[which - 1])
    ]
    workers = max(1, min((os.cpu_count() or 1) - 1, 16))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_compile, args=(jobs[i::workers],)) for i in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _compile(jobs: list[tuple[str, Size, int, Tile]]) -> None:
    from triton.runtime.errors import OutOfResources

    made: dict[Any, Callable[[int, Tile], Callable[[], Any]]] = {}
    for weights_format, size, which, tile in jobs:
        if (weights_format, size) not in made:
            # What a kernel is compiled for does not depend on the number of experts.
            experts = _experts(weights_format, size, num_experts=FEW_EXPERTS)
            made[weights_format, size] = _steps(experts, FEW_EXPERTS, top_k=size[2])
        try:
            made[weights_format, size](which, tile)()
        except OutOfResources:
            continue
    torch.cuda.synchronize()
