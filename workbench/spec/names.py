"""The names a scenario may use: fields of a schema class at a place, and every dotted path of a block."""

from collections.abc import Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from workbench.spec.errors import nearest
from workbench.spec.model import Model
from workbench.spec.scenario import Block

OTHER_WORDS = {
    "quantization": "precision",
    "quantisation": "precision",
    "dtype": "precision",
    "tokens": "workload.tokens_per_rank",
    "batch_size": "workload.tokens_per_rank",
    "num_gpus": "cluster.gpus_per_node",
    "gpus": "cluster.gpus_per_node",
    "experts": "model.num_experts",
    "routing": "router",
    "gate": "router",
    "all_to_all": "dispatch",
    "backend": "kernel",
}
"""Words of other tools and what they are called here."""


def classes_of(annotation: Any) -> list[type[BaseModel]]:
    """Schema classes that a field's annotation may hold, through unions and Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return classes_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [found for branch in get_args(annotation) if branch is not NoneType for found in classes_of(branch)]
    return []


def tag_of(cls: type[BaseModel]) -> tuple[str, ...]:
    """Values of ``kind`` that choose this class in its union."""
    return get_args(cls.model_fields["kind"].annotation) if "kind" in cls.model_fields else ()


def classes_at(root: type[BaseModel], location: tuple[str | int, ...]) -> list[type[BaseModel]]:
    """Classes that may stand at a pydantic error location, whose parts may be union tags or class names."""
    classes = [root]
    for part in location:
        chosen = [cls for cls in classes if part in tag_of(cls) or part == cls.__name__]
        fields = [cls.model_fields[part].annotation for cls in classes if part in cls.model_fields]
        classes = chosen or [found for annotation in fields for found in classes_of(annotation)] or classes
    return classes


def fields_at(root: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Field names that may stand at a location."""
    return list(dict.fromkeys(name for cls in classes_at(root, location) for name in cls.model_fields))


@cache
def block_paths() -> frozenset[str]:
    """Every dotted path that may stand in matrix, zip, exclude, include or --set."""
    inner = [f"model.{path}" for path in (*_walk(Model, ""), "base", "config")]
    return frozenset([*_walk(Block, ""), *inner])


def is_path(path: str) -> bool:
    """Whether a dotted path leads somewhere in a block; the keys of ``goal.space`` and ``sources`` are free."""
    known = block_paths()
    return path in known or any(path.startswith(f"{free}.") for free in known if free.endswith(("space", "sources")))


def suggest(name: str, known: list[str], *, below: str = "") -> str | None:
    """The nearest right name: among ``known`` first, then paths that end alike and words of other tools."""
    close = nearest(name, known)
    if close:
        return close
    endings: dict[str, str] = {}
    for path in sorted(block_paths(), key=lambda path: (path.count("."), path)):
        endings.setdefault(path.rpartition(".")[2], path)
    endings |= OTHER_WORDS
    close = nearest(name.rpartition(".")[2], endings, likeness=0.8)
    return endings[close].removeprefix(f"{below}.") if close else None


def _walk(cls: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in cls.model_fields.items():
        yield f"{prefix}{name}"
        for inner in classes_of(field.annotation):
            yield from _walk(inner, f"{prefix}{name}.")
