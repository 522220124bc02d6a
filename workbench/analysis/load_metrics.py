"""How even the loads of a run were: the figures of ``spec.load_metrics`` by cell and by what is counted."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

import numpy as np
import pandas as pd

from workbench.spec.load_metrics import DEFINITIONS, load_stats

COLUMNS = ("cell_id", "level", "count", *DEFINITIONS)


def load_figures(cells: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """A row for each cell and level with anything counted: ``count`` is N, then the figures by name.

    Experts and ranks come from the ``loads`` table, layers and steps by themselves and then averaged. What measured
    ranks sent comes from ``links`` (``layer/<link class>/out/rank <r>``): by rank, and across nodes by node.
    """
    rows = []
    for cell in cells[cells["status"] == "ok"].to_dict("records"):
        for level, counts_LN in _levels(cell, tables):
            figures = asdict(load_stats(counts_LN))
            if figures["max_over_mean"] is not None:
                rows.append({"cell_id": cell["cell_id"], "level": level, "count": counts_LN.shape[1]} | figures)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _levels(cell: dict, tables: Mapping[str, pd.DataFrame]) -> Iterator[tuple[str, np.ndarray]]:
    loads = tables["loads"]
    for kind, mine in loads[loads["cell_id"] == cell["cell_id"]].groupby("kind", sort=True):
        wide = mine.pivot_table(index=["layer", "step"], columns="index", values="tokens", aggfunc="sum", fill_value=0)
        yield str(kind), wide.to_numpy(dtype=float)
    if cell["engine"] == "measure" and not pd.isna(cell["ep"]):
        yield from _ports(cell, tables["links"])


def _ports(cell: dict, links: pd.DataFrame) -> Iterator[tuple[str, np.ndarray]]:
    sent = links[links["cell_id"] == cell["cell_id"]]
    sent = sent.join(sent["link"].str.extract(r"^layer/(?P<of>scale_up|scale_out)/out/rank (?P<rank>\d+)$"))
    sent = sent.dropna(subset=["rank"])
    if sent.empty:
        return
    num_ranks, of_node = int(cell["ep"]), max(1, int(cell["gpus_per_node"] or 1) // int(cell["tp"] or 1))
    ranks = sent["rank"].astype(int).to_numpy()
    out = sent["of"].eq("scale_out").to_numpy()
    sizes = sent["bytes"].astype(float).to_numpy()
    yield "rank_out", np.bincount(ranks, weights=sizes, minlength=num_ranks)[None]
    if out.any():
        nodes = np.arange(num_ranks) // of_node
        yield "node_out", np.bincount(nodes[ranks[out]], weights=sizes[out], minlength=int(nodes[-1]) + 1)[None]
