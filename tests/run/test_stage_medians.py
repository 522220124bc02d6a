"""Stage times and counters of several passes, and the clocks beside the one of the latency."""

from types import SimpleNamespace

import numpy as np
import torch

from workbench.comm.transport import Counters
from workbench.run.clocks import other_clocks
from workbench.run.measured_step import stage_medians


class Scripted:
    """A rank alone whose passes count and take what they are told."""

    def __init__(self, passes):
        self.passes, self.at = passes, -1
        self.device, self.transport = torch.device("cpu"), self

    def gather(self, values):
        return np.array([values])

    def barrier(self):
        self.at += 1

    def reset(self):
        return self.passes[max(self.at, 0)][1]

    def time_stages(self, stages):
        return [("dispatch", self.passes[self.at][0])]


def test_times_are_medians_and_bytes_those_of_one_pass():
    passes = [
        (us, Counters(scale_out_bytes=640, count_exchange_s=count_s, staging_s=staging_s))
        for us, count_s, staging_s in ((5.0, 9.0, 0.1), (90.0, 1.0, 0.2), (7.0, 2.0, 0.9))
    ]
    script = Scripted(passes)
    sampler = SimpleNamespace(context=script, flush=lambda: None)
    stages, counters = stage_medians(SimpleNamespace(stages=list), sampler, script, passes=3)
    assert stages == (("dispatch", 7.0),)
    assert (counters.count_exchange_s, counters.staging_s, counters.scale_out_bytes) == (2.0, 0.2, 640)


def test_a_processor_has_no_other_clock_and_the_step_is_not_run_again():
    sampler = SimpleNamespace(context=SimpleNamespace(device=torch.device("cpu")))
    assert other_clocks(lambda: 1 / 0, sampler) == {}
