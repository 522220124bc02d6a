"""``moe-workbench tune``: choose the tiles of the kernels by measuring on this machine's GPU."""

from pathlib import Path
from typing import Annotated

import typer


def tune(
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="Weight format to tune; repeat it. Every one if left out.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write. The table of this GPU in the package if left out."),
    ] = None,
) -> None:
    """Measure every tile worth trying on this GPU and write the table that the kernels choose from. Takes minutes."""
    from workbench.run.tune import PRECISIONS, render_table, require_gpu, write_table
    from workbench.run.tune import tune as measure

    name, _ = require_gpu()
    if output is None:
        import kernels.tuned

        output = Path(kernels.tuned.__file__).with_name(f"{kernels.tuned.module_name(name)}.py")
    table = measure(tuple(formats or PRECISIONS), say=typer.echo)
    write_table(render_table(table), output)
    typer.echo(f"wrote {output}")
