"""Files that are whole or absent, and a lock that a killed process cannot leave behind."""

import fcntl
import os
from pathlib import Path
from typing import IO


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside, sync, rename: a reader sees the old file or the new one, never half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with beside.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(beside, path)


def take_lock(path: Path) -> IO[bytes]:
    """Hold ``path`` for this process until the returned file is closed or the process dies.

    Raises ValueError when another one holds it.
    """
    stream = path.open("ab")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        stream.close()
        raise ValueError(f"{path.parent.name} is still being written by another process") from error
    except OSError:
        pass  # a file system without locks: one writer is then the caller's care
    return stream


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock."""
    if not path.exists():
        return False
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
