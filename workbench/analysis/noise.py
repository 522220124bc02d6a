"""The noise floor of devices, from a run whose cells were measured several times over: an A/A measurement."""

import pandas as pd

from workbench.analysis.statistics import noise_floor, slowest_series


def noise_floors(cells: pd.DataFrame, samples: pd.DataFrame) -> dict[str, float]:
    """By device, the ratio minus one that 95% of all pairs of repeats of one same measured cell stay below.

    Devices of which no cell has two repeats are left out.
    """
    series = slowest_series(samples)
    measured = cells[(cells["status"] == "ok") & (cells["engine"] != "simulate")].dropna(subset=["device"])
    floors = {}
    for device, group in measured.groupby("device"):
        floor = noise_floor({cell: series[cell] for cell in group["cell_id"] if cell in series})
        if pd.notna(floor):
            floors[str(device)] = floor
    return floors
