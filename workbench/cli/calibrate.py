"""``moe-workbench calibrate``: what the simulator knows of kernels, measured here or fitted to tables of others."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pandas as pd


def calibrate(
    records: Annotated[
        list[str] | None, typer.Option(help="Run whose measured layers to gather, instead of measuring; repeat it.")
    ] = None,
    constants: Annotated[
        bool, typer.Option("--constants", help="Fit the constants anew to the tables and records of the package.")
    ] = False,
    results: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("results"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File (with --records, --constants) or folder to write.")
    ] = None,
) -> None:
    """Measure this machine's ceilings and kernels, and write what the simulator then finds. Takes a minute or two."""
    from workbench.simulate.calibration_files import CONSTANTS, PACKAGED, RECORDS, calibration_dir, write_whole

    if records:
        from workbench.run.own_records import to_parquet

        frame = _gathered(records, results)
        path = output or PACKAGED / RECORDS
        write_whole(path, to_parquet(frame))
        typer.echo(f"wrote {len(frame)} records to {path}")
    elif constants:
        from workbench.run.fit_constants import fit_all, to_json

        path = output or PACKAGED / CONSTANTS
        fitted = fit_all()
        write_whole(path, to_json(fitted))
        typer.echo(f"wrote constants of {len(fitted['families'])} families to {path}")
    else:
        from workbench.run.calibrate import calibrate_machine

        for line in calibrate_machine(output or calibration_dir()):
            typer.echo(line)


def _gathered(references: list[str], results: Path) -> "pd.DataFrame":
    import pandas as pd

    from workbench.run.own_records import own_records
    from workbench.store.reader import read_table
    from workbench.store.run_folder import open_run

    runs = [open_run(results, reference) for reference in references]
    return pd.concat(
        [own_records(read_table(run, "cells").frame, read_table(run, "loads").frame) for run in runs],
        ignore_index=True,
    )
