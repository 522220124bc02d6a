"""Figures of loads from a run's tables."""

from dataclasses import asdict

import pandas as pd
import pytest

from tests.simulate.cells import cluster_of, make_cell
from workbench.analysis.load_metrics import load_figures
from workbench.run.simulated import run_simulated
from workbench.spec.load_metrics import DEFINITIONS, LEVELS, definition_lines

CELLS = pd.DataFrame(
    [{"cell_id": "a", "status": "ok", "engine": "measure", "ep": 4, "tp": 1, "gpus_per_node": 2},
     {"cell_id": "b", "status": "ok", "engine": "simulate", "ep": 4, "tp": 1, "gpus_per_node": 2},
     {"cell_id": "c", "status": "error", "engine": "measure", "ep": 4, "tp": 1, "gpus_per_node": 2}]
)  # fmt: skip


def loads(cell: str, kind: str, by_layer: list[list[int]]) -> list[dict]:
    return [
        {"cell_id": cell, "layer": layer, "step": 0, "kind": kind, "index": index, "tokens": tokens}
        for layer, counts in enumerate(by_layer)
        for index, tokens in enumerate(counts)
    ]


def tables() -> dict[str, pd.DataFrame]:
    rows = loads("a", "rank", [[100, 200], [200, 100]]) + loads("a", "expert", [[4, 0, 0, 0]])
    rows += loads("b", "expert", [[2, 2]]) + loads("c", "expert", [[9, 1]])
    sent = {"layer/scale_up/out/rank 0": 10, "layer/scale_out/out/rank 0": 30, "layer/scale_out/out/rank 3": 10,
            "layer/self/out/rank 1": 99}  # fmt: skip
    links = [{"cell_id": cell, "link": link, "bytes": size} for cell in "ab" for link, size in sent.items()]
    return {"loads": pd.DataFrame(rows), "links": pd.DataFrame(links)}


def test_n12_layers_are_averaged_after_the_figures_not_before():
    figures = load_figures(CELLS, tables()).set_index(["cell_id", "level"])
    assert figures.loc[("a", "rank"), "mean_over_max"] == pytest.approx(0.75)
    assert figures.loc[("a", "expert"), "max_over_mean"] == 4
    assert figures.loc[("a", "expert"), "count"] == 4
    assert figures.loc[("b", "expert"), "gini"] == 0
    assert "c" not in figures.index.get_level_values("cell_id")


def test_ports_of_measured_ranks_and_nodes_are_counted_with_the_idle_ones():
    figures = load_figures(CELLS, tables()).set_index(["cell_id", "level"])
    assert figures.loc[("a", "rank_out"), "count"] == 4
    assert figures.loc[("a", "rank_out"), "max_over_mean"] == pytest.approx(40 / 12.5)
    assert figures.loc[("a", "node_out"), "max_over_mean"] == pytest.approx(30 / 20)
    assert ("b", "rank_out") not in figures.index, "of simulated links only the busiest are kept"


def test_runs_without_loads_give_no_rows():
    empty = {"loads": tables()["loads"].iloc[:0], "links": tables()["links"].iloc[:0]}
    assert load_figures(CELLS, empty).empty
    assert load_figures(CELLS.iloc[:0], tables()).empty


def test_lines_name_every_figure_and_the_levels_asked_for():
    lines = definition_lines(["rank"])
    assert len(lines) == len(DEFINITIONS) + 1
    assert lines[-1].startswith("rank: ")
    assert len(definition_lines()) == len(DEFINITIONS) + len(LEVELS)


def test_simulated_cells_tell_the_load_of_node_ports():
    """A hot rank on the second node pulls copies there: its port in is busier, the other's port out."""
    cell = make_cell(
        "mixtral-8x7b", ep=4, tokens=8192, skew={"kind": "hot_rank", "factor": 3.0, "rank": 3},
        dispatch={"strategy": "flat"}, cluster=cluster_of(gpus=4, gpus_per_node=2),
    )  # fmt: skip
    outcome = run_simulated(cell)
    tables = {name: pd.DataFrame(rows) for name, rows in outcome.tables.items()}
    into = tables["loads"].query("kind == 'node_in'").set_index("index")["tokens"]
    assert into[1] / into[0] == pytest.approx(4 / 2, rel=0.05)  # shares of ranks: 1, 1 and 1, 3
    figures = load_figures(pd.DataFrame([asdict(outcome.record)]), tables).set_index("level")
    assert figures.loc["node_in", "max_over_mean"] == pytest.approx(4 / 3, rel=0.05)
    assert figures.loc["node_in", "count"] == 2
