"""Tile choice of the Triton grouped GEMMs. What was measured for a GPU is in ``kernels/tuned``."""

from dataclasses import dataclass, replace
from functools import cache

import torch

from kernels.tuned import load_table


@dataclass(frozen=True)
class Tile:
    """Block sizes, launch shape, how many row blocks share a column block's weights before the next (L2 reuse), and
    whether the weights are the first operand of the product. ``max_registers`` a thread: 0 leaves it to the compiler.
    ``tma``: weights come through tensor descriptors, where the operands allow it.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    group_m: int
    swap: bool = False
    max_registers: int = 0
    tma: bool = False


# Weight format -> (largest mean rows an expert, tile), ascending; the last entry takes the rest.
# e4m3_block: block_k is the scale group of 128, and block_n divides the 128 rows of a weight scale.
TILES: dict[str, tuple[tuple[float, Tile], ...]] = {
    "bf16": (
        (16, Tile(16, 64, 128, 4, 4, 1)),
        (32, Tile(32, 64, 128, 4, 4, 1)),
        (64, Tile(64, 128, 64, 4, 4, 1)),
        (float("inf"), Tile(128, 128, 64, 8, 4, 8)),
    ),
    "e4m3_block": (
        (64, Tile(64, 64, 128, 4, 4, 1)),
        (float("inf"), Tile(128, 128, 128, 8, 3, 8)),
    ),
}


def choose_tile(weights_format: str, *, num_rows: int, num_experts: int) -> Tile:
    """Tile for the mean rows of an expert, as the counts themselves are on the device."""
    mean_rows = num_rows / min(num_experts, num_rows)
    return next(tile for largest, tile in TILES[weights_format] if mean_rows <= largest)


@dataclass(frozen=True)
class LayerTiles:
    """Tiles of the two fused GEMMs, which share the rows a block."""

    gemm1: Tile
    gemm2: Tile

    def __post_init__(self) -> None:
        if self.gemm1.block_m != self.gemm2.block_m:
            raise ValueError(f"tiles: gemm1 has {self.gemm1.block_m} rows a block and gemm2 {self.gemm2.block_m}")

    @property
    def block_m(self) -> int:
        return self.gemm1.block_m


_SMALL, _MIDDLE, _LARGE = 16, 64, float("inf")
# For a GPU that was not tuned: weight format -> (largest mean rows an expert, tiles), ascending.
LAYER_TILES: dict[str, tuple[tuple[float, LayerTiles], ...]] = {
    "bf16": (
        (_SMALL, LayerTiles(Tile(16, 64, 128, 4, 4, 1), Tile(16, 64, 128, 4, 4, 1))),
        (_MIDDLE, LayerTiles(Tile(64, 64, 64, 4, 4, 1), Tile(64, 128, 64, 4, 4, 1))),
        (_LARGE, LayerTiles(Tile(128, 128, 64, 8, 3, 8), Tile(128, 256, 64, 8, 3, 8))),
    ),
    "e4m3": (
        (_SMALL, LayerTiles(Tile(16, 64, 128, 4, 4, 1, True), Tile(16, 64, 128, 4, 4, 1, True))),
        (_LARGE, LayerTiles(Tile(64, 64, 128, 4, 4, 8), Tile(64, 128, 128, 4, 4, 8))),
    ),
    "fp4": (
        (_SMALL, LayerTiles(Tile(16, 64, 128, 4, 4, 1, True), Tile(16, 64, 128, 4, 4, 1, True))),
        (_MIDDLE, LayerTiles(Tile(64, 64, 128, 4, 3, 1, True), Tile(64, 128, 128, 4, 3, 4, True))),
        (_LARGE, LayerTiles(Tile(128, 64, 128, 4, 3, 8, True), Tile(128, 128, 128, 4, 3, 8, True))),
    ),
    "mx8": (
        (_SMALL, LayerTiles(Tile(16, 64, 128, 4, 4, 1, True), Tile(16, 64, 128, 4, 4, 1, True))),
        (_MIDDLE, LayerTiles(Tile(64, 64, 128, 4, 3, 1, True), Tile(64, 64, 128, 4, 3, 4, True))),
        (_LARGE, LayerTiles(Tile(128, 64, 128, 4, 3, 8, True), Tile(128, 128, 128, 4, 3, 8, True))),
    ),
    "scaled": (
        (_SMALL, LayerTiles(Tile(16, 128, 128, 4, 4, 1, True), Tile(16, 128, 128, 4, 4, 1, True))),
        (_LARGE, LayerTiles(Tile(128, 128, 128, 4, 3, 8), Tile(128, 128, 128, 4, 3, 8))),
    ),
}
_FAMILIES = {"bf16": "bf16", "mxfp4": "fp4", "nvfp4": "fp4", "mxfp8": "mx8", "scaled": "scaled"}
# Bytes of an element of the rows and of the weights with its share of the scales.
_BYTES = {"bf16": (2.0, 2.0), "e4m3": (1.0, 1.0), "fp4": (2.0, 0.75), "mx8": (2.0, 1.25), "scaled": (1.25, 1.25)}
_SPARE_BYTES = 2048


def family(weights_format: str) -> str:
    """``bf16``, ``e4m3``, ``fp4``, ``mx8`` or ``scaled``: formats whose tiles cost the same.

    ``scaled`` is the name of any format where the matrix unit scales blocks itself.
    """
    return _FAMILIES.get(weights_format, "e4m3")


def is_direct(num_rows: int, num_experts: int) -> bool:
    """Whether pairs are so few beside the experts that each is a block of its own and nothing is sorted."""
    return 4 * num_rows <= num_experts


def choose_layer_tiles(weights_format: str, *, num_rows: int, num_experts: int, device: torch.device) -> LayerTiles:
    """Tiles for the mean rows of an expert, as counts are on the device; 0 where pairs are not sorted."""
    mean_rows = 0.0 if is_direct(num_rows, num_experts) else num_rows / max(1, min(num_experts, num_rows))
    table, shared_bytes = _table_of(weights_format, device)
    tiles = next(tiles for largest, tiles in table if mean_rows <= largest)
    if shared_bytes is None:
        return tiles
    gemm1, gemm2 = (
        fit(t, family(weights_format), parts=n, shared_bytes=shared_bytes)
        for t, n in ((tiles.gemm1, 2), (tiles.gemm2, 1))
    )
    return LayerTiles(gemm1, gemm2)


def fit(tile: Tile, kind: str, *, parts: int, shared_bytes: int) -> Tile:
    """The tile with as many stages as shared memory holds; ``parts`` column blocks of weights go with one of rows."""
    rows, weights = _BYTES[kind]
    stage = (tile.block_m * rows + parts * tile.block_n * weights) * tile.block_k
    return replace(tile, num_stages=max(1, min(tile.num_stages, int((shared_bytes - _SPARE_BYTES) // stage))))


@cache
def _table_of(weights_format: str, device: torch.device) -> tuple[tuple[tuple[float, LayerTiles], ...], int | None]:
    """The tuned table, or the general one with the shared memory of a block to fit it into."""
    if device.type != "cuda":
        return LAYER_TILES[family(weights_format)], None
    properties = torch.cuda.get_device_properties(device)
    tuned = load_table(properties.name, (properties.major, properties.minor))
    if tuned is None or weights_format not in tuned["tiles"]:
        return LAYER_TILES[family(weights_format)], properties.shared_memory_per_block_optin
    rows = tuned["tiles"][weights_format]
    return tuple((row[0], LayerTiles(Tile(*row[1]), Tile(*row[2]))) for row in rows), None
