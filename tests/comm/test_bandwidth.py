"""Bandwidths as nccl-tests define them."""

import pytest
import torch

from workbench.comm.bandwidth import algbw, busbw
from workbench.comm.topology import Topology
from workbench.comm.transport import TorchTransport


def test_n05_one_rank_copies_and_has_no_bandwidth():
    transport = TorchTransport(None, rank=0, world=1, topology=Topology(1, 1), device=torch.device("cpu"))
    for num_rows in (0, 5):
        rows = torch.randint(0, 256, (num_rows, 3), dtype=torch.uint8)
        received = transport.exchange_rows(rows, [num_rows], transport.exchange_counts([num_rows]))
        assert torch.equal(received, rows)
        assert received is not rows
    transport.barrier()
    assert transport.counters.wire_bytes == 0
    assert transport.counters.self_bytes == 15
    assert busbw(15, seconds=0.001, num_ranks=1) is None
    assert algbw(15, seconds=0.001, num_ranks=1) is None


def test_n06_bytes_of_one_rank_and_one_factor():
    size = 64 * 2**20
    assert algbw(size, seconds=1e-3, num_ranks=8) == pytest.approx(67.1089, abs=1e-4)
    assert busbw(size, seconds=1e-3, num_ranks=8) == pytest.approx(58.7203, abs=1e-4)
