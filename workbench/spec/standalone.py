"""One cell from a block written as a mapping, without a scenario file."""

from typing import Any

from workbench.spec.block import Reader
from workbench.spec.faults import Fault
from workbench.spec.raw import Raw
from workbench.spec.resolve import resolve_cell
from workbench.spec.scenario import Cell


def read_cell(raw: Raw, *, reader: Reader, scenario: str = "block", group: str = "") -> tuple[Cell | None, list[Fault]]:
    """The planned cell of a block, or every fault of it. ``reader`` looks up once what many blocks share."""
    read, faults = reader.read(raw)
    if read is None:
        return None, faults
    return resolve_cell(read, scenario=scenario, group=group)


def one_cell(raw: dict[str, Any]) -> Cell:
    """The planned cell of a block. Raises ValueError with its first fault."""
    cell, faults = read_cell(raw, reader=Reader(None))
    if cell is None:
        raise ValueError(f"{'.'.join(map(str, faults[0].path))}: {faults[0].message}")
    return cell
