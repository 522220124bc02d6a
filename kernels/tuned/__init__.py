"""Tiles chosen by measuring, one module a GPU, written by ``moe-workbench tune``; nothing here needs a GPU to be read.

A module holds ``TABLE``: the GPU, the date, the versions, and per weight format rows of
(largest mean rows an expert, tile of gemm1, tile of gemm2), ascending, a tile as the numbers of ``tiles.Tile``.
"""

import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

NEAREST = {(9, 0): "nvidia_h200"}
"""The table of a GPU without one of its own, by compute capability: the same processor with another memory."""


def module_name(gpu_name: str) -> str:
    """``NVIDIA H200`` -> ``nvidia_h200``."""
    return re.sub(r"[^a-z0-9]+", "_", gpu_name.lower()).strip("_")


@cache
def load_table(gpu_name: str, capability: tuple[int, int]) -> dict[str, Any] | None:
    """The table of a GPU, the nearest one, or None."""
    for name in (module_name(gpu_name), NEAREST.get(capability)):
        if name and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}").TABLE
    return None
