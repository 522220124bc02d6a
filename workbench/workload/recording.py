"""Recorded traffic: read once, checked, its layers and steps chosen, and dealt to the ranks of a cell.

The cell's step s takes the s-th chosen step of the file, and begins again behind the last. Ranks take its tokens in
turn, one rank's after another's; when they run out they begin again too. T tokens, K top-k, E experts.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from workbench.spec.scenario import Cell
from workbench.spec.workload import Trace
from workbench.workload.sources import source_tokens
from workbench.workload.tensor_files import READERS
from workbench.workload.trace_forms import FORMS, Steps


@dataclass(frozen=True, eq=False)
class Recording:
    """The chosen layers and steps of a file, in the order of the choice (see ``trace_forms.Steps``)."""

    path: str
    form: str
    steps: Steps
    layers: tuple[int, ...]

    def batch(self, layer: int, step: int) -> np.ndarray:
        """One layer of one step: ids [T, K], counts [E] or logits [T, E]."""
        return self._of_step(self.steps.batches, step)[self._layer(layer)]

    def weights(self, layer: int, step: int) -> np.ndarray | None:
        """float32 [T, K] beside the ids; None where none were recorded."""
        weights = self.steps.weights
        return None if weights is None else self._of_step(weights, step)[self._layer(layer)]

    def rows(self, step: int, *, start: int, count: int, num_tokens: int) -> np.ndarray:
        """Which recorded tokens ``count`` tokens of a rank are; ``start`` of the ``num_tokens`` stand before them."""
        recorded = self._of_step(self.steps.batches, step).shape[1]
        turn = step // len(self.steps.batches)
        return (turn * num_tokens + start + np.arange(count)) % recorded

    def _of_step(self, values: tuple[np.ndarray, ...], step: int) -> np.ndarray:
        return values[step % len(values)]

    def _layer(self, layer: int) -> int:
        if layer >= len(self.layers):
            raise ValueError(
                f"workload.skew.path: {self.path} has {len(self.layers)} layers to take, but layer {layer + 1} is asked"
                " for; lower workload.layers"
            )
        return layer


@lru_cache(maxsize=4)
def load_recording(trace: Trace, digest: str | None) -> Recording:
    """The recording of a skew of kind trace; ``digest`` is the SHA-256 that the cell was planned with.

    Raises ValueError that names the file and the mend.
    """
    path = Path(trace.path)
    try:
        if not path.is_file():
            raise ValueError("is no file on this machine")
        if path.suffix not in READERS:
            raise ValueError(f"is none of {', '.join(READERS)}")
        if digest is not None and _digest(path) != digest:
            raise ValueError("has changed since the cell was planned; plan it again")
        return _chosen(trace, FORMS[trace.form](READERS[path.suffix](path)))
    except OSError as error:
        raise ValueError(f"workload.skew.path: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"workload.skew.path: {path} (form {trace.form}) {error}") from error


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _chosen(trace: Trace, steps: Steps) -> Recording:
    """Layers and steps by number; left out, all in which a token chose an expert."""
    busy_SL = np.array([[_busy(trace.form, layer) for layer in batch] for batch in steps.batches])
    taken = _numbers_of(trace.steps, busy_SL.any(axis=1), "steps")
    layers = _numbers_of(trace.layers, busy_SL[taken].any(axis=0), "layers")
    idle = [(step, layer) for step in taken for layer in layers if trace.form == "counts" and not busy_SL[step, layer]]
    if idle:
        raise ValueError(f"has no token in step {idle[0][0]}, layer {idle[0][1]}; choose others")
    batches = tuple(steps.batches[step][layers] for step in taken)
    weights = None if steps.weights is None else tuple(steps.weights[step][layers] for step in taken)
    if trace.form == "ids":
        _require_distinct(batches, taken, layers)
    return Recording(trace.path, trace.form, Steps(batches, weights), tuple(layers))


def _busy(form: str, batch: np.ndarray) -> bool:
    """A dense layer is recorded as zeros: no count, or every token's experts the same one."""
    if form == "counts":
        return bool(batch.any())
    return form == "logits" or bool((batch != batch[:, :1]).any() or (batch.shape[1] == 1 and (batch >= 0).any()))


def _numbers_of(asked: tuple[int, ...] | None, busy: np.ndarray, name: str) -> list[int]:
    if asked is None:
        chosen = np.flatnonzero(busy).tolist()
        if not chosen:
            raise ValueError(f"has no {name} in which a token chose an expert")
        return chosen
    outside = [number for number in asked if number >= busy.size]
    if outside or not asked:
        raise ValueError(f"has {name} 0 to {busy.size - 1}; workload.skew.{name} asks for {outside or 'none'}")
    return list(asked)


def _require_distinct(batches: tuple[np.ndarray, ...], steps: list[int], layers: list[int]) -> None:
    for step, batch in zip(steps, batches, strict=True):
        ordered = np.sort(batch, axis=2)
        twice = ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any(axis=2)
        if twice.any():
            layer, token = (int(place) for place in np.argwhere(twice)[0])
            raise ValueError(
                f"names an expert twice for token {token} of step {step}, layer {layers[layer]}; a token takes each"
                " once: leave such layers out by workload.skew.layers, or a shared expert out of the columns"
            )


def recording_of(cell: Cell) -> Recording | None:
    """The cell's recording, checked against its model; None for another skew. Raises ValueError."""
    trace = cell.workload.skew
    if not isinstance(trace, Trace) or cell.model is None:
        return None
    recording = load_recording(trace, cell.trace_digest)
    require_fit(recording, num_experts=cell.model.num_experts, top_k=cell.model.top_k)
    recording.batch(cell.workload.layers - 1, 0)
    return recording


def require_fit(recording: Recording, *, num_experts: int, top_k: int) -> None:
    """Raises ValueError where the recording is of another number of experts, or of experts a token."""
    batches, where = recording.steps.batches, f"workload.skew.path: {recording.path}"
    if recording.form != "ids":
        found = batches[0].shape[-1]
        if found != num_experts:
            raise ValueError(f"{where} is of {found} experts, model.num_experts is {num_experts}; name its model")
        return
    if batches[0].shape[2] != top_k or len({batch.shape[2] for batch in batches}) > 1:
        widths = sorted({batch.shape[2] for batch in batches})
        raise ValueError(f"{where} has {widths} experts a token, model.top_k is {top_k}; name its model")
    highest = max(int(batch.max()) for batch in batches)
    if highest >= num_experts:
        raise ValueError(f"{where} names expert {highest}, model.num_experts is {num_experts}; name its model")


def trace_flags(cell: Cell) -> list[str]:
    """What a reader must know of a recording shorter than what is asked for; nothing where the file is not here."""
    trace = cell.workload.skew
    recording = recording_of(cell) if isinstance(trace, Trace) and Path(trace.path).is_file() else None
    if recording is None:
        return []
    flags, steps = [], recording.steps.batches
    if cell.workload.steps > len(steps):
        flags.append(f"trace_steps={len(steps)}")
    if recording.form != "counts":
        recorded, asked = min(batch.shape[1] for batch in steps), int(source_tokens(cell).sum())
        if asked > recorded:
            flags.append(f"trace_tokens={recorded}")
    return flags
