"""Commands that show a run: report writes one HTML file, dashboard serves the app on this machine."""

import os
import signal
import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.output import console
from workbench.cli.results import RESULTS, ResultsOption, RunArgument

ADDRESS = "127.0.0.1"
RESULTS_VARIABLE = "MOE_WORKBENCH_RESULTS"
EXTRA = "pip install 'moe-workbench[dashboard]'"


def report(
    run: RunArgument = "latest",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="HTML file; in the run's folder if left out.")]
    = None,
    results: ResultsOption = RESULTS,
) -> None:  # fmt: skip
    """Write the report of a run: one HTML file that opens offline."""
    _need("plotly")
    from workbench.report.html import write_report
    from workbench.store.run_folder import open_run

    folder = open_run(results, run)
    target = output or folder.path / "report.html"
    write_report(folder, target)
    console().print(f"report: {target}", markup=False, soft_wrap=True)


def performance(
    run: RunArgument = "kernels-h200",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Markdown file; printed if left out.")] = None,
    results: Annotated[Path | None, typer.Option("--results", help="Folder of runs; the recorded ones if left out.")]
    = None,
) -> None:  # fmt: skip
    """Set our kernels beside their peers on one H200, row by row with what bounds it, as Markdown."""
    from workbench.report.performance import performance_page
    from workbench.spec.catalog_files import reference_dir
    from workbench.store.reader import read_table
    from workbench.store.run_folder import open_run

    folder = open_run(results or reference_dir(), run)
    _write(performance_page(read_table(folder, "cells").frame, folder.manifest()), output)


def claims(
    run: RunArgument = "claim",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Markdown file; printed if left out.")] = None,
    results: Annotated[Path | None, typer.Option("--results", help="Folder of runs; the recorded ones if left out.")]
    = None,
) -> None:  # fmt: skip
    """What the field repeats about MoE layers, and under which conditions a run of scenarios/claims bears it out."""
    from workbench.plan import plan_cells
    from workbench.report.claims import CLAIMS, claims_page
    from workbench.spec.catalog_files import reference_dir, scenarios_dir
    from workbench.spec.scenario_file import load_scenario
    from workbench.store.reader import read_table
    from workbench.store.run_folder import open_run

    folder = open_run(results or reference_dir(), run)
    suites = {claim.suite: scenarios_dir() / "claims" / f"{claim.suite}.yaml" for claim in CLAIMS}
    planned = {name: [cell.cell_id for cell in plan_cells(load_scenario(path))] for name, path in suites.items()}
    _write(claims_page(read_table(folder, "cells").frame, planned, run_id=folder.run_id), output)


def _write(page: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(page)
    else:
        output.write_text(page, encoding="utf-8")


def dashboard(
    results: ResultsOption = RESULTS,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on the loopback address.")] = 8501,
) -> None:
    """Serve the dashboard on this machine's loopback address until Ctrl-C."""
    _need("streamlit")
    _need("plotly")
    app = _app_file()
    if results.exists() and not results.is_dir():
        raise ValueError(f"--results {results}: is not a folder")
    _check_port(port)
    environment = os.environ | {
        RESULTS_VARIABLE: str(results.resolve()),
        "PYTHONPATH": os.pathsep.join([str(app.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    console().print(f"dashboard: http://{ADDRESS}:{port} (Ctrl-C ends it)", markup=False)
    sys.stdout.flush()
    raise typer.Exit(_serve(_command(app, port), environment))


def _command(app: Path, port: int) -> list[str]:
    options = {
        "server.address": ADDRESS,
        "server.port": port,
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "client.toolbarMode": "minimal",
        "browser.gatherUsageStats": "false",
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "streamlit", "run", str(app), *flags]


def _serve(command: list[str], environment: dict[str, str]) -> int:
    """Run the server as a child that ends with this process; how it goes down when asked to is no fault."""
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    asked = threading.Event()

    def end(*_: object) -> None:
        asked.set()
        child.terminate()

    signal.signal(signal.SIGTERM, end)
    try:
        status = child.wait()
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        return 0
    return 0 if asked.is_set() or status == -signal.SIGTERM else status


def _app_file() -> Path:
    spec = find_spec("dashboard")
    app = Path(spec.origin).with_name("app.py") if spec and spec.origin else None
    if app is None or not app.is_file():
        raise ValueError("dashboard: the dashboard folder is not installed; install the project again")
    return app


def _need(module: str) -> None:
    if find_spec(module) is None:
        raise ValueError(f"{module} is not installed; get it with: {EXTRA}")


def _check_port(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            raise ValueError(f"--port {port}: cannot be used ({error.strerror}); choose another") from error
