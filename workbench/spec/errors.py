"""What a user did wrong, as data: one Problem a fault, all of a file at once in one SpecError."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

MISSING = object()
"""Stands for a value that is absent from the file."""

_SHOWN = 40
_LONGEST_VALUE = 80


@dataclass(frozen=True)
class Problem:
    """One fault of an input: where it stands, what stands there, and how to mend it.

    ``line`` and ``column`` count from 1; None where the fault has no place in a file.
    """

    file: str | None
    line: int | None
    path: str
    value: Any
    message: str
    column: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        text = ": ".join(part for part in (place, self.path, self.message) if part)
        return text if self.value is MISSING else f"{text} (got {_shown(self.value)})"


class SpecError(ValueError):
    """An input that cannot be used; ``problems`` holds every fault, ``str()`` one line each."""

    def __init__(self, problems: Iterable[Problem] | Problem) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"and {len(self.problems) - _SHOWN} more")
        return "\n".join(lines)


class Unsupported(Exception):
    """A combination that no engine here can do; the cell ends ``unsupported`` with this reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def refuse(message: str, *, path: str = "", value: Any = MISSING, file: str | None = None) -> SpecError:
    """A SpecError of one problem without a line."""
    return SpecError(Problem(file, None, path, value, message))


def nearest(name: object, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The known name closest to a misspelt one, or None when none is as like as ``likeness`` (1: the same)."""
    by_shape = {_shape(candidate): candidate for candidate in known}
    close = get_close_matches(_shape(str(name)), list(by_shape), n=1, cutoff=likeness)
    return by_shape[close[0]] if close else None


def unknown_name(what: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that is not among ``known``: the nearest, or all of them when none is near."""
    names = sorted(known)
    close = nearest(name, names)
    return f"unknown {what}; {f'did you mean {close}?' if close else 'known: ' + (', '.join(names) or 'none')}"


def _shape(name: str) -> str:
    return name.lower().replace("_", "-").replace(" ", "-")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = "null" if value is None else repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
