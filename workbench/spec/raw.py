"""Blocks as plain nested mappings, before validation: dotted paths into them, and one laid over another."""

from collections.abc import Mapping
from typing import Any

Keys = tuple[str, ...]
Raw = Mapping[str, Any]

CHOICE_KEYS = {
    "precision": ("name",),
    "model": ("base", "config"),
    "cluster": ("base", "hardware"),
    **dict.fromkeys(("scope", "router", "skew", "data", "overlap", "placement"), ("kind",)),
}
"""Keys whose change makes a mapping another thing; a plain text stands for the first: ``model: x`` is ``{base: x}``."""


def keys_of(path: str) -> Keys:
    """``"workload.skew.kind"`` as its keys."""
    return tuple(path.split("."))


def lay(raw: Raw, keys: Keys, value: Any) -> dict[str, Any]:
    """A copy of ``raw`` with ``value`` laid over what stands at ``keys``; what lies beside the path is shared."""
    key, rest = keys[0], keys[1:]
    below = raw.get(key)
    return {**raw, key: lay(_lengthen(below, key), rest, value) if rest else _over(below, value, key)}


def overlay(below: Raw, above: Raw) -> dict[str, Any]:
    """``below`` with ``above`` laid over it, mapping by mapping.

    A mapping that chooses another kind, base or part replaces the one below it whole.
    """
    merged = dict(below)
    for key, value in above.items():
        merged[key] = _over(below.get(key), value, key)
    return merged


def leaves(raw: Raw, above: Keys = ()) -> dict[Keys, Any]:
    """Every value that is not a mapping, by its keys; dotted keys are taken apart."""
    found: dict[Keys, Any] = {}
    for key, value in raw.items():
        keys = (*above, *keys_of(str(key)))
        if isinstance(value, Mapping) and value:
            found |= leaves(value, keys)
        else:
            found[keys] = value
    return found


def holds(raw: Any, keys: Keys) -> bool:
    """Whether ``keys`` lead to a value in ``raw``."""
    for key in keys:
        if not isinstance(raw, Mapping) or key not in raw:
            return False
        raw = raw[key]
    return True


def begins(path: tuple[str | int, ...], keys: tuple[str | int, ...]) -> bool:
    """Whether ``path`` lies at or below ``keys``."""
    return path[: len(keys)] == keys


def _over(below: Any, above: Any, key: str) -> Any:
    under = _lengthen(below, key)
    if not isinstance(above, Mapping) or not under:
        return above
    another = any(choice in above and above[choice] != under.get(choice) for choice in CHOICE_KEYS.get(key, ()))
    return dict(above) if another else overlay(under, above)


def _lengthen(value: Any, key: str) -> Raw:
    """The mapping that ``value`` stands for under ``key``; empty where it stands for none."""
    if isinstance(value, Mapping):
        return value
    return {CHOICE_KEYS[key][0]: value} if isinstance(value, str) and key in CHOICE_KEYS else {}
