"""Pydantic's errors in the words and paths of the user's file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from workbench.spec.errors import MISSING, unknown_name
from workbench.spec.names import classes_at, fields_at, suggest, tag_of
from workbench.spec.yaml_source import Path

_QUOTED = re.compile(r"'([^']*)'")
_EXPECTED = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping with a kind, or the name of a kind",
    "finite_number": "must be a finite number",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
_LIMITS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


@dataclass(frozen=True)
class Fault:
    """One fault of a block, by its path in that block; the file and line are found later."""

    path: Path
    value: Any
    message: str


def faults_of(error: ValidationError, raw: Any, root: type[BaseModel], *, above: Path = ()) -> list[Fault]:
    """Every error of a validation of ``raw`` against ``root``, one a path, union branches folded together.

    ``above`` is put before each path.
    """
    by_path: dict[Path, tuple[Any, list[str]]] = {}
    errors = list(error.errors(include_url=False))
    for item in errors:
        path, value = _resolve(item["loc"], raw, item["type"])
        if item["type"] == "union_tag_invalid" and isinstance(value, Mapping):
            path, value = (*path, "kind"), value["kind"]
        if _other_branch(item, value, errors):
            continue
        messages = by_path.setdefault(path, (value, []))[1]
        message = _message(item, value, root)
        if message not in messages:
            messages.append(message)
    return [Fault((*above, *path), value, " or ".join(said)) for path, (value, said) in by_path.items()]


def _resolve(location: Sequence[str | int], raw: Any, kind: str) -> tuple[Path, Any]:
    """Walk the user's data along a location, passing over the union tags that pydantic puts between."""
    path: list[str | int] = []
    for part in location:
        held = part in raw if isinstance(raw, Mapping) else isinstance(raw, list | tuple) and part in range(len(raw))
        if held:
            raw = raw[part]
            path.append(part)
    return (*path, location[-1]) if kind == "missing" else tuple(path), MISSING if kind == "missing" else raw


def _other_branch(item: Mapping[str, Any], value: Any, errors: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an error belongs to the branch of a union that the user plainly did not mean."""
    location = item["loc"]
    siblings = [other["loc"] for other in errors if len(other["loc"]) > len(location) - 1 and other is not item]
    in_union = any(other[: len(location) - 1] == location[:-1] and other != location for other in siblings)
    if not in_union or not location:
        return False
    if item["type"] == "string_type" and str(location[-1]) == "constrained-str":
        return isinstance(value, Mapping)
    if item["type"] == "literal_error" and str(location[-1]).startswith("literal["):
        return isinstance(value, Mapping | list)
    return False


def _message(item: Mapping[str, Any], value: Any, root: type[BaseModel]) -> str:
    kind, context = item["type"], item.get("ctx") or {}
    if kind == "extra_forbidden":
        return _unknown_key(item["loc"], root)
    if kind == "missing":
        return "is needed"
    if kind == "union_tag_invalid":
        return _one_of("kind", context["tag"], context["expected_tags"])
    if kind == "union_tag_not_found":
        return f"needs a kind: one of {', '.join(_tags(item['loc'], root))}"
    if kind == "literal_error":
        return _one_of("value", value, context["expected"])
    if kind in _LIMITS:
        words, limit = _LIMITS[kind]
        return f"must be {words} {context[limit]:g}"
    if kind == "value_error":
        return str(context["error"])
    return _EXPECTED.get(kind, item["msg"])


def _unknown_key(location: Sequence[str | int], root: type[BaseModel]) -> str:
    parent, name = tuple(location[:-1]), str(location[-1])
    known = fields_at(root, parent)
    close = suggest(name, known, below=str(parent[0]) if parent else "")
    hint = f"did you mean {close}?" if close else f"known here: {', '.join(sorted(known))}"
    return f"unknown key; {hint}"


def _one_of(what: str, value: Any, expected: str) -> str:
    names = _QUOTED.findall(expected)
    return unknown_name(what, value, names) if len(names) > 1 else f"must be {names[0]}"


def _tags(location: Sequence[str | int], root: type[BaseModel]) -> list[str]:
    return [tag for cls in classes_at(root, tuple(location)) for tag in tag_of(cls)]
