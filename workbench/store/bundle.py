"""Runs as lines of text and back, for a channel that carries nothing but a log.

A bundle is a tar.xz of run folders in base64, cut into marked lines; the last line holds its length and SHA-256.
"""

import base64
import binascii
import hashlib
import io
import os
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

MARK = "moe-workbench-bundle:"
LINE_BYTES = 32_768
MAX_BYTES = 256 * 2**20
LEFT_OUT = ("profiles", ".lock", "stop")


def bundle_lines(results_dir: Path) -> Iterator[str]:
    """The runs below ``results_dir`` as marked lines; traces and locks stay behind."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for folder in sorted(path for path in results_dir.iterdir() if path.is_dir()):
            archive.add(folder, arcname=folder.name, filter=_kept)
    data = packed.getvalue()
    text = base64.b64encode(data).decode("ascii")
    for start in range(0, len(text), LINE_BYTES):
        yield MARK + text[start : start + LINE_BYTES]
    yield f"{MARK}end {len(data)} {hashlib.sha256(data).hexdigest()}"


def unbundle(lines: Iterable[str], results_dir: Path) -> tuple[Path, ...]:
    """Puts the runs of marked lines into ``results_dir``; returns their folders.

    Raises ValueError when the bundle is cut, damaged or too large, and when a run is there already.
    """
    parts, end = [], ""
    for line in lines:
        body = line.strip().removeprefix(MARK)
        if body.startswith("end "):
            end = body
        else:
            parts.append(body)
    data = _verified("".join(parts), end)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as archive:
        members = archive.getmembers()
        if sum(member.size for member in members) > MAX_BYTES:
            raise ValueError(f"the bundle unpacks to more than {MAX_BYTES // 2**20} MiB; copy the results by hand")
        names = sorted({Path(member.name).parts[0] for member in members if member.name not in ("", ".")})
        there = [name for name in names if (results_dir / name).exists()]
        if there:
            raise ValueError(f"{results_dir / there[0]} is there already; nothing was overwritten")
        results_dir.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=results_dir, prefix=".bundle-") as half:
            try:
                archive.extractall(half, filter="data")
            except tarfile.TarError as error:
                raise ValueError(f"the bundle holds what no run holds: {error}") from error
            for name in names:
                os.replace(Path(half) / name, results_dir / name)
    return tuple(results_dir / name for name in names)


def _verified(text: str, end: str) -> bytes:
    fields = end.split()
    if len(fields) != 3:
        raise ValueError("the bundle has no end: the log was cut")
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"the bundle is damaged: {error}") from error
    if str(len(data)) != fields[1] or hashlib.sha256(data).hexdigest() != fields[2]:
        raise ValueError(f"the bundle is damaged: {len(data)} bytes arrived, {fields[1]} were sent")
    return data


def _kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(member.name).name in LEFT_OUT else member


def main(arguments: list[str]) -> None:
    """``RESULTS`` prints its bundle; ``--into RESULTS`` takes one, with any other lines, from standard input."""
    if arguments[:1] == ["--into"]:
        for run in unbundle((line for line in sys.stdin if line.startswith(MARK)), Path(arguments[1])):
            print(run)
        return
    for line in bundle_lines(Path(arguments[0])):
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
