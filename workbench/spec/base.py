"""Shared pieces of the schema: frozen models, strict scalars, sizes and tagged unions."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict

SIZE_UNITS = {
    "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?B|B)\s*$")


class Frozen(BaseModel):
    """Immutable schema node; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def parse_size(value: Any) -> Any:
    """Bytes of a size such as ``80GB`` (10^9) or ``80GiB`` (2^30); numbers pass through.

    Raises ValueError for a text that is no size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value)
    if not match:
        raise ValueError("a size is a number of bytes or a text such as 80GB (10^9) or 80GiB (2^30)")
    return round(float(match[1]) * SIZE_UNITS[match[2]])


def size_text(size: int) -> str:
    """Bytes as a scenario would say them: ``67108864`` is ``64MiB``, ``1500`` stays ``1500B``."""
    unit = next((unit for unit in ("TiB", "GiB", "MiB", "KiB") if size and size % SIZE_UNITS[unit] == 0), "B")
    return f"{size // SIZE_UNITS[unit]}{unit}"


def kind_from_text(value: Any) -> Any:
    """``router: switch`` is short for ``router: {kind: switch}``."""
    return {"kind": value} if isinstance(value, str) else value


Count = Annotated[int, Strict(), Field(ge=1)]
NonNegative = Annotated[int, Strict(), Field(ge=0)]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict(), Field(min_length=1)]
Real = Annotated[float, Strict()]
Positive = Annotated[float, Strict(), Field(gt=0)]
NonNegativeReal = Annotated[float, Strict(), Field(ge=0)]
Fraction = Annotated[float, Strict(), Field(ge=0, le=1)]
Bytes = Annotated[int, BeforeValidator(parse_size), Strict(), Field(ge=1)]
