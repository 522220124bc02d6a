"""Reading one config.json field at a time, so that a message names the field and the mend."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEND = "correct the config.json, or write the model out in YAML"


@dataclass(frozen=True)
class Fields:
    """A config whose fields are checked as they are read; messages name the field."""

    values: Mapping[str, Any]
    model_type: str

    def count(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """The first of ``names`` that is there, a whole number of at least ``least``."""
        name = next((n for n in names if self.values.get(n) is not None), names[0])
        value = self.values.get(name)
        if value is None:
            if default is not None:
                return default
            raise ValueError(f"{name}: missing from the config of model_type {self.model_type!r}; {MEND}")
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name}: must be a whole number of at least {least} (got {value!r}); {MEND}")
        return value

    def choice(self, name: str, allowed: tuple[str, ...], *, default: str) -> str:
        value = self.values.get(name) or default
        if value not in allowed:
            raise ValueError(
                f"{name}: {value!r} is not known for model_type {self.model_type!r}, only {', '.join(allowed)}; {MEND}"
            )
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{name}: must be true or false (got {value!r}); {MEND}")
        return default if value is None else value

    def number(self, name: str, *, default: float) -> float:
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{name}: must be a number above 0 (got {value!r}); {MEND}")
        return float(value)

    def layer_list(self, name: str) -> tuple[int, ...] | None:
        value = self.values.get(name)
        if value is None:
            return None
        layers = self.count("num_hidden_layers")
        if not isinstance(value, list) or not all(type(i) is int and 0 <= i < layers for i in value):
            raise ValueError(f"{name}: must list layers from 0 to {layers - 1} (got {value!r}); {MEND}")
        return tuple(sorted(set(value)))
