"""``--set path=value``: values laid over every group of a file after everything else."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.spec.errors import MISSING, Problem, SpecError
from workbench.spec.names import block_paths, is_path, suggest
from workbench.spec.raw import Keys, Raw, begins, keys_of, lay
from workbench.spec.yaml_source import load_yaml

SET = "--set"
FILE_LEVEL = ("name", "matrix", "zip", "exclude", "include")


@dataclass(frozen=True)
class Override:
    """One ``--set``; ``keys`` of a file-level one start with name, matrix, zip, exclude or include."""

    keys: Keys
    value: Any

    @property
    def file_level(self) -> bool:
        return self.keys[0] in FILE_LEVEL


def parse_overrides(texts: Iterable[str]) -> tuple[Override, ...]:
    """Overrides of ``path=value`` texts, values read as YAML.

    Raises SpecError with every text that has no ``=`` or an unknown path.
    """
    overrides: list[Override] = []
    problems: list[Problem] = []
    for text in texts:
        path, equals, value = text.partition("=")
        path = path.strip()
        try:
            if not equals or not path:
                raise SpecError(Problem(SET, None, "", text, "must be path=value, such as workload.seed=1"))
            overrides.append(Override(_keys(path), load_yaml(value, f"{SET} {path}").data))
        except SpecError as fault:
            problems += fault.problems
    if problems:
        raise SpecError(problems)
    return tuple(overrides)


def over_file(data: Raw, overrides: Iterable[Override]) -> dict[str, Any]:
    """The data of a file with its file-level overrides in place, in every group as well."""
    data = dict(data)
    for override in overrides:
        if not override.file_level:
            continue
        key, axis = override.keys[0], override.keys[1:]
        data = _set_key(data, key, axis, override.value)
        if isinstance(data.get("groups"), list) and key != "name":
            data["groups"] = [_set_in_group(group, key, axis, override.value) for group in data["groups"]]
    return data


def over_body(raw: Raw, overrides: Iterable[Override]) -> Raw:
    """A block with the overrides of its fields laid over it."""
    for override in overrides:
        if not override.file_level:
            raw = lay(raw, override.keys, override.value)
    return raw


def pins(overrides: Iterable[Override], keys: Keys) -> bool:
    """Whether an override decides the field at ``keys``, so that an axis over it has nothing left to vary."""
    return any(not override.file_level and begins(keys, override.keys) for override in overrides)


def _keys(path: str) -> Keys:
    first, _, axis = path.partition(".")
    if first in FILE_LEVEL:
        takes_axis = first in ("matrix", "zip")
        if bool(axis) and not takes_axis:
            raise SpecError(Problem(SET, None, path, MISSING, f"{first} is set whole, without a path behind it"))
        if not axis or is_path(axis):
            return (first, axis) if axis else (first,)
    elif is_path(path):
        return keys_of(path)
    known = [*block_paths(), *FILE_LEVEL]
    close = suggest(axis if first in FILE_LEVEL else path, known)
    hint = f"; did you mean {close}?" if close else ""
    raise SpecError(Problem(SET, None, path, MISSING, f"unknown path{hint}"))


def _set_key(data: Raw, key: str, axis: Keys, value: Any) -> dict[str, Any]:
    if not axis:
        return {**data, key: value}
    held = data.get(key)
    return {**data, key: {**(held if isinstance(held, Mapping) else {}), axis[0]: value}}


def _set_in_group(group: Any, key: str, axis: Keys, value: Any) -> Any:
    if not isinstance(group, Mapping) or key not in group:
        return group
    if not axis:
        return {name: held for name, held in group.items() if name != key}
    return _set_key(group, key, axis, value) if axis[0] in group[key] else group
