"""``moe-workbench``: puts the commands together and turns every refusal into one message and exit status 2."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

import typer

from workbench import __version__
from workbench.cli.examples import epilog

COMMANDS: dict[str, str] = {
    "run": "workbench.cli.run:run",
    "submit": "workbench.cli.submit:submit",
    "stop": "workbench.cli.run:stop",
    "plan": "workbench.cli.plan:plan",
    "scenarios": "workbench.cli.plan:scenarios",
    "schema": "workbench.cli.plan:schema",
    "runs": "workbench.cli.results:runs",
    "show": "workbench.cli.results:show",
    "export": "workbench.cli.results:export",
    "import": "workbench.cli.store:import_file",
    "merge": "workbench.cli.store:merge",
    "prune": "workbench.cli.store:prune",
    "compare": "workbench.cli.compare:compare",
    "report": "workbench.cli.report:report",
    "performance": "workbench.cli.report:performance",
    "claims": "workbench.cli.report:claims",
    "dashboard": "workbench.cli.report:dashboard",
    "doctor": "workbench.cli.doctor:doctor",
    "tune": "workbench.cli.tune:tune",
    "calibrate": "workbench.cli.calibrate:calibrate",
    "validate": "workbench.cli.validate:validate",
}
"""Command name to ``module:function``; the function's docstring is its help."""

REFUSED = 2
FAILED = 1
INTERRUPTED = 130
TRACEBACK = "MOE_WORKBENCH_TRACEBACK"

HELP = """Measure and simulate mixture-of-experts layers: precision, all-to-all, placement and GPU count in one table.

Exit status: 2 the input was refused; 1 a cell ended in error, or none ended ok; else 0.
"""


def build_app() -> typer.Typer:
    """The typer application with every command of ``COMMANDS`` that this installation holds."""
    app = typer.Typer(help=HELP, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(_common)
    for name, target in COMMANDS.items():
        module, _, function = target.partition(":")
        if find_spec(module) is not None:
            app.command(name, epilog=epilog(name))(getattr(import_module(module), function))
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; never a traceback unless MOE_WORKBENCH_TRACEBACK is set."""
    try:
        build_app()(args=list(arguments) if arguments is not None else None, prog_name="moe-workbench")
    except SystemExit as stop:
        return _status(stop)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as fault:
        if os.environ.get(TRACEBACK):
            raise
        return _report(fault)
    return 0


def _report(fault: Exception) -> int:
    if isinstance(fault, ValueError | FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return _say(str(fault), REFUSED)
    if isinstance(fault, ModuleNotFoundError) and str(fault.name).startswith("kernels."):
        return _say(
            f"{fault}: another package named kernels hides this project's folder; install the wheel beside it "
            "(pip install .) instead of an editable checkout",
            FAILED,
        )
    return _say(f"{type(fault).__name__}: {fault} (set {TRACEBACK}=1 to see where)", FAILED)


def _say(message: str, status: int) -> int:
    for line in message.splitlines() or [""]:
        print(f"error: {line}", file=sys.stderr)
    return status


def _status(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    return stop.code if isinstance(stop.code, int) else _say(str(stop.code), FAILED)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"moe-workbench {__version__}")
        raise typer.Exit


def _common(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
