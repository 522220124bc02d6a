"""One block of a scenario read: validated, its model, cluster and files looked up, every fault with its path."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from workbench.spec.catalog import find_file, resolve_cluster, resolve_model
from workbench.spec.cluster import Cluster, ClusterRef
from workbench.spec.errors import Problem, SpecError
from workbench.spec.faults import Fault, faults_of
from workbench.spec.model import Model
from workbench.spec.raw import Raw
from workbench.spec.scenario import MODEL_FREE_SCOPES, Block

_FILES = {("workload", "skew"): "trace", ("workload", "data"): "file"}
"""Where a block may name a file of numbers, and the kind that does."""


@dataclass(frozen=True)
class FileRef:
    """A file that a block names, found, with the SHA-256 of its bytes."""

    path: str
    digest: str


@dataclass(frozen=True)
class ReadBlock:
    """A block whose names are resolved; rules between fields come later."""

    raw: Raw
    block: Block
    model: Model | None
    cluster: Cluster
    trace: FileRef | None
    data_file: FileRef | None


@dataclass(frozen=True)
class Reader:
    """Reads the blocks of one file; what many blocks of a matrix share is looked up once."""

    folder: Path | None = None
    seen: dict[str, Any] = field(default_factory=dict)

    def read(self, raw: Raw) -> tuple[ReadBlock | None, list[Fault]]:
        """The read block, or every fault that prevents it."""
        faults: list[Fault] = []
        block = None
        try:
            block = Block.model_validate(raw)
        except ValidationError as error:
            faults += faults_of(error, raw, Block)
        model = self._look_up(("model",), raw.get("model"), self._model, faults)
        cluster = self._look_up(("cluster",), raw.get("cluster", {}), _cluster, faults)
        files = [self._look_up(keys, raw.get(keys[0]), self._file(keys), faults) for keys in _FILES]
        if block is None:
            return None, faults
        for pool in ("prefill", "decode"):
            if block.serving is not None:
                self._look_up(("serving", pool, "cluster"), getattr(block.serving, pool).cluster, _cluster, faults)
        if block.model is None and block.scope.kind not in MODEL_FREE_SCOPES:
            faults.append(Fault(("model",), None, f"scope {block.scope.kind} needs a model, such as deepseek-v3"))
        return (None if faults else ReadBlock(raw, block, model, cluster, *files)), faults

    def _model(self, reference: Any) -> Model | None:
        return None if reference is None else resolve_model(reference, folder=self.folder)

    def _file(self, keys: tuple[str, str]) -> Callable[[Any], FileRef | None]:
        def read(workload: Any) -> FileRef | None:
            named = workload.get(keys[1]) if isinstance(workload, Mapping) else None
            if not isinstance(named, Mapping) or named.get("kind") != _FILES[keys]:
                return None
            path = named.get("path")
            return file_digest(path, folder=self.folder) if isinstance(path, str) and path else None

        return read

    def _look_up(self, keys: tuple[str, ...], value: Any, look: Callable[[Any], Any], faults: list[Fault]) -> Any:
        key = f"{keys} {json.dumps(value, sort_keys=True, default=str)}"
        if key not in self.seen:
            try:
                self.seen[key] = look(value)
            except SpecError as fault:
                self.seen[key] = fault
        found = self.seen[key]
        if not isinstance(found, SpecError):
            return found
        faults += [Fault((*keys, *_path_of(problem)), problem.value, problem.message) for problem in found.problems]
        return None


def file_digest(path: str, *, folder: Path | None) -> FileRef:
    """Find a file and hash it; raises SpecError at ``path`` when it cannot be read."""
    found = find_file(path, folder=folder)
    try:
        with found.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as fault:
        raise SpecError(Problem(None, None, "path", path, f"cannot be read: {fault.strerror}")) from None
    return FileRef(str(found.resolve()), digest)


def _cluster(written: Any) -> Cluster | None:
    """The planned cluster, or None where the block's own validation already says what else is wrong."""
    if isinstance(written, ClusterRef | str):
        return resolve_cluster(written)
    try:
        return resolve_cluster(ClusterRef.model_validate(written))
    except ValidationError:
        held = written if isinstance(written, Mapping) else {}
        names = {key: held[key] for key in ("base", "hardware") if isinstance(held.get(key), str) and held[key]}
        return resolve_cluster(ClusterRef(**names)) if names else None


def _path_of(problem: Problem) -> tuple[str, ...]:
    return tuple(problem.path.split(".")) if problem.path else ()
