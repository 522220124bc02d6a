"""The whole tables of ``aiconfigurator-core`` where a user has installed it (the extra ``tables``); nothing else of it.

Its package is found, not imported: the Parquet files of measured MoE layers lie under
``systems/data/<system>/moe/<backend>/<version>/moe_perf.parquet``.
"""

from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

DISTRIBUTION, PACKAGE = "aiconfigurator-core", "aiconfigurator_core"
KNOWN_VERSION = "0.12.0"
"""The version whose columns these are; another one is passed over."""
COLUMNS = {
    "kernel_source": "kernel_source", "moe_dtype": "dtype", "num_tokens": "num_tokens", "hidden_size": "hidden",
    "inter_size": "inter", "topk": "topk", "num_experts": "num_experts", "moe_tp_size": "tp", "moe_ep_size": "ep",
    "distribution": "distribution", "latency": "latency_ms",
}  # fmt: skip
"""Column of the tables to the name it has in ``published``."""


@cache
def tables_dir() -> Path | None:
    """The folder of the installed tables; None where the package is absent or of another version."""
    spec = find_spec(PACKAGE)
    try:
        if spec is None or version(DISTRIBUTION) != KNOWN_VERSION:
            return None
    except PackageNotFoundError:
        return None
    folders = [Path(place) / "systems" / "data" for place in spec.submodule_search_locations or ()]
    return next((folder for folder in folders if folder.is_dir()), None)


def layer_tables(system: str, backend: str, release: str) -> pd.DataFrame | None:
    """One whole table in the columns of ``published``; None without it."""
    folder = tables_dir()
    path = folder / system / "moe" / backend / release / "moe_perf.parquet" if folder else None
    if path is None or not path.is_file():
        return None
    frame = pq.read_table(path, columns=list(COLUMNS)).to_pandas().rename(columns=COLUMNS)
    return frame.assign(hardware=system, backend=backend, version=release)


@lru_cache(maxsize=1024)
def installed_layers(
    system: str, backend: str, dtype: str, source: str, shape: tuple[int, int, int, int], tp: int, ep: int
) -> pd.DataFrame | None:
    """Rows of one kernel, shape (hidden, inter, top-k, experts) and parallelism, in the columns of ``published``, of
    the newest version that has any; None without the package or without rows."""
    folder = tables_dir()
    if folder is None:
        return None
    wanted = {"moe_dtype": dtype, "kernel_source": source, "moe_tp_size": tp, "moe_ep_size": ep}
    wanted |= dict(zip(("hidden_size", "inter_size", "topk", "num_experts"), shape, strict=True))
    filters = [(name, "=", value) for name, value in wanted.items()]
    for path in sorted((folder / system / "moe" / backend).glob("*/moe_perf.parquet"), key=_age, reverse=True):
        frame = pq.read_table(path, columns=list(COLUMNS), filters=filters).to_pandas()
        if len(frame):
            frame = frame.rename(columns=COLUMNS).assign(hardware=system, backend=backend, version=path.parent.name)
            # A point measured more than once counts once.
            keys = [name for name in frame.columns if name != "latency_ms"]
            return frame.groupby(keys, as_index=False)["latency_ms"].median()
    return None


def _age(path: Path) -> tuple[int, ...]:
    """Versions in their order: 0.5.9 before 0.5.14, 1.3.0rc9 before 1.3.0rc20."""
    digits = "".join(letter if letter.isdigit() else " " for letter in path.parent.name)
    return tuple(int(number) for number in digits.split())
