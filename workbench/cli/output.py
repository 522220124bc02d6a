"""What the commands print: UTF-8 whatever the locale says, tables for people, strict JSON for programs."""

import io
import sys
from enum import StrEnum
from typing import Any

from rich.console import Console

from workbench.store.strict_json import to_json


class Format(StrEnum):
    """The two forms of a command's answer."""

    TABLE = "table"
    JSON = "json"


def console() -> Console:
    """A console on standard output that can print any name."""
    _speak_utf8()
    return Console(soft_wrap=False, highlight=False)


def print_json(answer: dict[str, Any]) -> None:
    """Strict JSON on standard output."""
    print_text(to_json(answer, indent=2) + "\n")


def print_text(text: str) -> None:
    """Text on standard output as it is, without markup."""
    _speak_utf8()
    sys.stdout.write(text)


def _speak_utf8() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (stream.encoding or "").lower().replace("-", "") != "utf8":
            stream.reconfigure(encoding="utf-8", errors="replace")
