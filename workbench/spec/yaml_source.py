"""YAML as this project reads it: safe, YAML 1.2 scalars, and the line of every value kept.

``1e5`` is the number 100000, only ``true`` and ``false`` are booleans, a key stands once, and a tab does not indent.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import yaml

from workbench.spec.errors import MISSING, Problem, SpecError

Path = tuple[str | int, ...]

_INT = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0(?:o[0-7]+|x[0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_NULL = {"", "~", "null", "Null", "NULL"}
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_OLD_BOOLEAN = {"no", "off", "on", "yes"}
_INDENT_TAB = re.compile(r"^ *(\t)[ \t]*[^ \t#\r\n]")
_MOST_NODES = 200_000
_LARGEST_EXPONENT = 30
_TEXT_TAG, _LIST_TAG, _MAP_TAG = (f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map"))


@dataclass(frozen=True)
class Source:
    """Plain data of a YAML text; ``lines`` gives the line (from 1) of each path, the key's own for a mapping."""

    data: Any
    lines: Mapping[Path, int]

    def line(self, path: Path) -> int | None:
        """Line of ``path``, or of the nearest thing above it that the text holds."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path)


def load_yaml(text: str, file: str) -> Source:
    """Read one YAML document.

    Raises SpecError with every tab, repeated key and unquoted yes/no of the text, or with its first syntax error.
    """
    tabs = [_tab(file, number, match) for number, match in _tabs(text)]
    if tabs:
        raise SpecError(tabs)
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as fault:
        raise SpecError(_syntax(file, fault)) from None
    except RecursionError:
        raise SpecError(Problem(file, None, "", MISSING, "nested too deep to be a scenario")) from None
    reader = _Reader(file)
    data = reader.read(node, (), ()) if node is not None else None
    if reader.problems:
        raise SpecError(reader.problems)
    return Source(data, reader.lines)


def dotted(path: Path) -> str:
    """``("groups", 0, "model")`` as ``groups[0].model``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def plain_scalar(text: str) -> Any:
    """The value of an unquoted scalar; an exponent that leaves a whole number gives an int."""
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if _INT.fullmatch(text):
        return int(text) if len(text) < 4000 else text
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return _number(text)
    special = _SPECIAL.fullmatch(text)
    return float(text.replace(".", "")) if special else text


def _number(text: str) -> int | float:
    number = Decimal(text)
    small = number.is_zero() or number.adjusted() <= _LARGEST_EXPONENT
    whole = "e" in text.lower() and small and number == number.to_integral_value()
    return int(number) if whole else float(text)


class _Reader:
    """Turns YAML nodes into plain data and collects faults and lines on the way."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.lines: dict[Path, int] = {}
        self.count = 0

    def read(self, node: yaml.Node, path: Path, above: tuple[int, ...]) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        self.count += 1
        if id(node) in above or self.count > _MOST_NODES:
            why = "an alias stands inside its own anchor" if id(node) in above else "too large for a scenario"
            raise SpecError(Problem(self.file, node.start_mark.line + 1, dotted(path), MISSING, why))
        if node.tag not in (_TEXT_TAG, _LIST_TAG, _MAP_TAG):
            self._fault(node, path, node.tag, "tags are not read here; write the plain value")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, (*above, id(node)))
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, i), (*above, id(node))) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path, above: tuple[int, ...]) -> dict[str, Any]:
        data: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._fault(key_node, path, MISSING, "a key must be a plain word")
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in first:
                message = f"key stands twice in one mapping, on line {first[key]} and on line {line}; keep one"
                self._fault(key_node, (*path, key), MISSING, message)
                continue
            first[key] = line
            self.lines[(*path, key)] = line
            data[key] = self.read(value_node, (*path, key), above)
        return data

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text = node.value
        if node.style is not None:
            return text
        if text.lower() in _OLD_BOOLEAN:
            self._fault(
                node, path, text, f'{text} reads as a boolean elsewhere; write "{text}" in quotes, true or false'
            )
            return None
        return plain_scalar(text)

    def _fault(self, node: yaml.Node, path: Path, value: Any, message: str) -> None:
        self.problems.append(Problem(self.file, node.start_mark.line + 1, dotted(path), value, message))


def _tabs(text: str) -> list[tuple[int, re.Match[str]]]:
    matches = ((number, _INDENT_TAB.match(line)) for number, line in enumerate(text.splitlines(), 1))
    return [(number, match) for number, match in matches if match]


def _tab(file: str, line: int, match: re.Match[str]) -> Problem:
    return Problem(file, line, "", MISSING, "tabs are not allowed; indent with spaces", match.start(1) + 1)


def _syntax(file: str, fault: yaml.YAMLError) -> Problem:
    if isinstance(fault, yaml.reader.ReaderError):
        character = fault.character if isinstance(fault.character, str) else chr(fault.character)
        return Problem(file, None, "", MISSING, f"character {character!r} is not allowed in YAML")
    mark = getattr(fault, "problem_mark", None) or getattr(fault, "context_mark", None)
    said = [part for part in (getattr(fault, "context", None), getattr(fault, "problem", None)) if part]
    message = "not valid YAML: " + (", ".join(said) or "cannot be read")
    return Problem(file, mark.line + 1 if mark else None, "", MISSING, message, mark.column + 1 if mark else None)
