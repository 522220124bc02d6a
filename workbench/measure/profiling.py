"""A torch profiler trace of some passes over named stages, as the bytes of a gzipped Chrome trace."""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

PASSES = 3
Stages = Sequence[tuple[str, Callable[[], object]]]


def record_trace(stages: Stages, *, device: torch.device) -> bytes:
    """The trace of ``PASSES`` passes, each a span ``pass 0``, ``pass 1``, ... that holds one span a stage by its name.

    On a GPU it has the kernels and copies of the device beside the host's calls. Work of other threads, as messages
    that overlap are, stands in rows of their own.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    every_thread = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=activities, record_shapes=True, experimental_config=every_thread) as recorded:
        run_passes(stages, device=device)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        recorded.export_chrome_trace(str(path))
        return path.read_bytes()


def run_passes(stages: Stages, *, device: torch.device) -> None:
    """The same passes without a recorder: what the other ranks of a gang do meanwhile."""
    for number in range(PASSES):
        with record_function(f"pass {number}"):
            for name, call in stages:
                with record_function(name):
                    call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
