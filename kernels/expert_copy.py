"""An expert on its way from host memory to a slot of a device, in as few copies over the link as its size is worth.

E experts, S slots. Weights go straight to their slot. Scales, biases and the like are small, and a copy costs the link
microseconds whatever its size, so they lie side by side in a row of their own in host memory, travel as one, and are
spread on the device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

LARGE_BYTES = 1 << 20
"""Of one expert's part, from which on it travels by itself."""
_ALIGNMENT = 16


class ExpertCopies:
    """Copies of single experts of ``host_parts`` [E, ...] into ``slot_parts`` [S, ...], on the current stream.

    All of them must be given to one stream, as they share the row that small parts arrive in.
    """

    def __init__(self, host_parts: Sequence[Tensor], slot_parts: Sequence[Tensor], *, large_bytes: int = LARGE_BYTES):
        pairs = [pair for pair in zip(host_parts, slot_parts, strict=True) if pair[0].numel()]
        self._large = [pair for pair in pairs if pair[0][0].nbytes >= large_bytes]
        small = [pair for pair in pairs if pair[0][0].nbytes < large_bytes]
        self._slots = [slots for _, slots in small]
        self._rows, places = _side_by_side([host for host, _ in small])
        device = slot_parts[0].device
        if device.type == "cuda" and small:
            self._rows = self._rows.pin_memory()
        self._row = torch.empty(self._rows.shape[1:], dtype=torch.uint8, device=device)
        self._pieces = [
            self._row[place : place + host[0].nbytes].view(host.dtype).view(host.shape[1:])
            for (host, _), place in zip(small, places, strict=True)
        ]

    def copy(self, expert: int, slot: int) -> None:
        """Start the copies; the host waits for none."""
        for host, slots in self._large:
            slots[slot].copy_(host[expert], non_blocking=True)
        if self._slots:
            self._row.copy_(self._rows[expert], non_blocking=True)
        for piece, slots in zip(self._pieces, self._slots, strict=True):
            slots[slot].copy_(piece, non_blocking=True)


def _side_by_side(parts: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Bytes uint8 [E, B] of the parts of every expert, each at a multiple of 16, and where each begins."""
    places, end = [], 0
    for part in parts:
        places.append(end)
        end += -(-part[0].nbytes // _ALIGNMENT) * _ALIGNMENT
    rows = torch.zeros((len(parts[0]) if parts else 0, end), dtype=torch.uint8)
    for part, place in zip(parts, places, strict=True):
        rows[:, place : place + part[0].nbytes] = part.reshape(len(part), -1).contiguous().view(torch.uint8)
    return rows, places
