"""How a run is asked to end: the file ``stop`` in its folder, Ctrl-C, or SIGTERM."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_LOOK_S = 0.2


class Stopped(Exception):
    """Raised where work in flight is given up because the run was asked to end."""


class StopRequest:
    """Becomes true once and stays so; ``why`` names who asked."""

    def __init__(self, stop_path: Path) -> None:
        self._stop_path = stop_path
        self._looked_at = float("-inf")
        self.why: str | None = None

    def __call__(self) -> bool:
        """Whether the run shall end; looks at the file at most five times a second."""
        if self.why is None and time.monotonic() - self._looked_at > _LOOK_S:
            self._looked_at = time.monotonic()
            if self._stop_path.exists():
                self.why = "moe-workbench stop"
        return self.why is not None

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """First signal: end after saving. Second: at once."""
        if self.why is not None:
            raise KeyboardInterrupt
        self.why = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


@contextmanager
def heed_signals(request: StopRequest) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into a stop request while the block runs; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, request.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
