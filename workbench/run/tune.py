"""Choose the tiles of the fused layer by measuring them on this GPU, and write them down as a table.

E experts, K top-k, T tokens. Every candidate runs in a CUDA graph over warm caches, on three models' layer sizes; a
class of mean rows an expert takes the pair with the least geometric mean of gemm1 + gemm2 over them. The class of 0
rows is that of one token, whose pairs are not sorted: there whole layers are timed, as the kernels of one overlap.
"""

import itertools
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

from kernels.backend import FUSED_CAPABILITY, triton_unsupported
from kernels.grouped_gemm.candidates import candidates
from kernels.grouped_gemm.tiles import LayerTiles, Tile
from kernels.moe import ExpertWeights
from kernels.recipes import RECIPES
from workbench.run.tune_calls import PRECISIONS, Size, gemm_calls, make_experts, time_us

SIZES = ((7168, 2048, 8, False), (4096, 1536, 8, False), (2880, 2880, 4, True))
"""(hidden, intermediate, top-k, gpt-oss's activation and biases) of DeepSeek-V3, Qwen3-235B and gpt-oss."""
NUM_EXPERTS, FEW_EXPERTS = 64, 8
MEAN_ROWS = (0, 1, 4, 16, 32, 64, 128, 256, 512)
Times = dict[tuple[int, Tile], list[float]]
Pair = tuple[Tile, Tile]


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
    measured: dict[int, tuple[Times, Times]] = {rows: ({}, {}) for rows in MEAN_ROWS[1:]}
    layers: dict[Pair, list[float]] = {}
    for size in SIZES:
        experts = make_experts(weights_format, size, num_experts=NUM_EXPERTS)
        _measure_layers(experts, layers, top_k=size[2])
        for mean_rows, times in measured.items():
            _measure(experts, mean_rows, times, top_k=size[2])
        del experts
        torch.cuda.empty_cache()
    rows: list[tuple[Any, ...]] = []
    for at, mean_rows in enumerate(MEAN_ROWS):
        us, first, second = choose_pair(*measured[mean_rows]) if mean_rows else choose_layer(layers)
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


def choose_layer(layers: dict[Pair, list[float]]) -> tuple[float, Tile, Tile]:
    """As ``choose_pair``, of layers timed whole."""
    most = max(map(len, layers.values()))
    whole = [(statistics.geometric_mean(times), *pair) for pair, times in layers.items() if len(times) == most]
    return min(whole, key=lambda found: found[0])


def _measure(experts: ExpertWeights, mean_rows: int, times: tuple[Times, Times], *, top_k: int) -> None:
    from triton.runtime.errors import OutOfResources

    step = gemm_calls(experts, mean_rows, top_k=top_k)
    for which, tiles in enumerate(candidates(experts.w13.format, mean_rows), 1):
        for tile in tiles:
            try:
                us = time_us(step(which, tile), repeats=20 if mean_rows <= 16 else 5)
            except OutOfResources:
                continue
            times[which - 1].setdefault((tile.block_m, tile), []).append(us)


def _measure_layers(experts: ExpertWeights, layers: dict[Pair, list[float]], *, top_k: int) -> None:
    """Layers of one token, each of a graph with experts of its own, as few experts would stay in the cache."""
    from triton.runtime.errors import OutOfResources

    from kernels.fused import fused_layer

    hidden = experts.w2.shape[1]
    x_TH = torch.randn(1, hidden, device="cuda").bfloat16()
    weights_TK = torch.rand(1, top_k, device="cuda")
    turns = itertools.cycle(torch.arange(experts.num_experts, dtype=torch.int32, device="cuda").view(-1, 1, top_k))
    for pair in itertools.product(*candidates(experts.w13.format, 0)):
        tiles = LayerTiles(*pair)
        try:
            us = time_us(
                lambda tiles=tiles: fused_layer(x_TH, next(turns), weights_TK, experts, tiles=tiles), repeats=8
            )
        except OutOfResources:
            continue
        layers.setdefault(pair, []).append(us)


def compile_ahead(formats: Iterable[str]) -> None:
    """Compile every candidate in processes of their own into Triton's cache; the measuring then finds them there."""
    jobs = [
        (weights_format, size, rows, which, tile)
        for weights_format in formats
        for size in SIZES
        for rows, classes in ((0, MEAN_ROWS[:1]), (FEW_EXPERTS, MEAN_ROWS[1:]))
        for which in (1, 2)
        for tile in dict.fromkeys(t for mean in classes for t in candidates(weights_format, mean)[which - 1])
    ]
    workers = max(1, min((os.cpu_count() or 1) - 1, 16))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_compile, args=(jobs[i::workers],)) for i in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _compile(jobs: list[tuple[str, Size, int, int, Tile]]) -> None:
    from triton.runtime.errors import OutOfResources

    made: dict[Any, Callable[[int, Tile], Callable[[], Any]]] = {}
    for weights_format, size, rows, which, tile in jobs:
        if (weights_format, size, rows) not in made:
            # What a kernel is compiled for does not depend on the number of experts.
            experts = make_experts(weights_format, size, num_experts=FEW_EXPERTS)
            made[weights_format, size, rows] = gemm_calls(experts, rows, top_k=size[2])
        try:
            made[weights_format, size, rows](which, tile)()
        except OutOfResources:
            continue
    torch.cuda.synchronize()
