"""JSON that every strict parser takes: no NaN or Infinity, no bare Python types."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import date
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel

from workbench.store.text import readable_text


def to_json(obj: Any, *, indent: int | None = None) -> str:
    """Strict JSON of ``obj``; missing and non-finite numbers become null, a DataFrame a list of rows."""
    return json.dumps(plain_value(obj), allow_nan=False, ensure_ascii=False, indent=indent)


def frame_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a frame as plain dicts with None for what is missing."""
    columns = {name: [plain_value(value) for value in frame[name].tolist()] for name in frame.columns}
    return [{name: values[i] for name, values in columns.items()} for i in range(len(frame))]


def plain_value(obj: Any) -> Any:
    """``obj`` as dicts, lists, texts, finite numbers, booleans and None."""
    match obj:
        case None | bool():
            return obj
        case str():
            return readable_text(obj)
        case np.generic():
            return plain_value(obj.item())
        case int():
            return obj
        case float():
            return obj if math.isfinite(obj) else None
        case Mapping():
            return {readable_text(str(key)): plain_value(value) for key, value in obj.items()}
        case np.ndarray() | pd.Series():
            return [plain_value(value) for value in obj.tolist()]
        case list() | tuple() | set() | frozenset():
            return [plain_value(value) for value in obj]
        case pd.DataFrame():
            return frame_rows(obj)
        case BaseModel():
            return plain_value(obj.model_dump(mode="json"))
        case _ if is_dataclass(obj) and not isinstance(obj, type):
            return plain_value(asdict(obj))
        case _ if obj is pd.NA or obj is pd.NaT:
            return None
        case date():
            return obj.isoformat()
        case PurePath():
            return str(obj)
    raise TypeError(f"no JSON form for {type(obj).__name__}")
