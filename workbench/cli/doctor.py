"""Command over this machine: doctor."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from workbench.cli.output import Format, console, print_json


def doctor(form: Annotated[Format, typer.Option("--format", help="A table, or strict JSON.")] = Format.TABLE) -> None:
    """Show devices, math paths, versions, clocks and power caps, and what is missing and how to get it."""
    from workbench.doctor.facts import examine

    facts = examine()
    if form is Format.JSON:
        print_json(facts)
        return
    out = console()
    _print_machine(out, facts["machine"], facts["ray"])
    _print_devices(out, facts["devices"])
    for warning in facts["warnings"]:
        out.print(Text(f"warning: {warning}", style="yellow"))
    _print_missing(out, facts["missing"])


def _print_machine(out: Console, machine: dict[str, Any], ray: dict[str, Any]) -> None:
    packages = {name: version for name, version in machine["packages"].items() if version}
    versions = {"python": machine["python"], **packages, "cuda": machine["cuda"], "nccl": machine["nccl"]}
    cpu = machine["cpu"]
    lines = {
        "machine": f"{machine['hostname']}, {machine['platform']}",
        "cpu": f"{cpu['name']}, {cpu['logical_cores']} logical cores, {_gib(cpu['memory_bytes'])}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "ray": f"own cluster on {ray['address']}: up to {ray['cpu_ranks']} CPU ranks, {ray['task_workers']} workers",
    }
    for name, text in lines.items():
        out.print(f"{name:9} {text}", markup=False)


def _print_devices(out: Console, devices: list[dict[str, Any]]) -> None:
    from workbench.report.terminal import plain_table

    table = plain_table("math path of each precision")
    table.add_column("precision")
    for device in devices:
        table.add_column(device["device"])
    for precision in devices[0]["math_paths"]:
        table.add_row(precision, *(device["math_paths"][precision] for device in devices))
    out.print(table)
    for device in devices[1:]:
        out.print(_gpu_line(device), markup=False)


def _gpu_line(gpu: dict[str, Any]) -> str:
    facts = [f"{gpu['device']}: {gpu['name']}", f"sm_{gpu['capability'][0]}{gpu['capability'][1]}"]
    facts.append(_gib(gpu["memory_bytes"]))
    if "sm_clock_mhz" in gpu:
        facts.append(f"SM clock {gpu['sm_clock_mhz']} of {gpu['max_sm_clock_mhz']} MHz")
        facts.append(f"power cap {gpu['power_limit_w']:.0f} W")
        facts.append(f"driver {gpu['driver']}")
    return ", ".join(facts)


def _print_missing(out: Console, missing: list[dict[str, Any]]) -> None:
    from workbench.report.terminal import plain_table

    if not missing:
        out.print("nothing is missing")
        return
    table = plain_table("missing")
    for column in ("what", "needed for", "how to get it"):
        table.add_column(column, overflow="fold")
    for gap in missing:
        table.add_row(*(Text(gap[key]) for key in ("name", "blocks", "how")))
    out.print(table)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
