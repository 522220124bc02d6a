"""Ranks of a real process group: python -m tests.comm.exchange_ranks FOLDER BACKEND WORLD [WORLD ...]

One process imports torch and forks the ranks of each WORLD. Each rank writes what it saw to FOLDER/WORLD-RANK.json as
{check: "ok" or what went wrong}. BACKEND is gloo, nccl (a GPU a rank), or gloo-cuda (CUDA tensors staged through the
host).
"""

import json
import multiprocessing
import sys
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.comm.exchange_cases import (
    check_exchange,
    check_node_dedup_crosses_once_a_pair,
    check_refusals,
    exchange_cases,
    routed,
)
from tests.workload.factory import make_cell
from workbench.balance.placement import expert_map_of, to_slots
from workbench.comm.carriers import Exchange, carry
from workbench.comm.execute import DispatchMismatch, combine, dispatch, received_ids, reduce_pairs, verify_arrivals
from workbench.comm.oracle import expected_buffer
from workbench.comm.payload import decode_rows, encode_rows, encoded_bytes
from workbench.comm.rank_plan import prepare_rank
from workbench.comm.strategies import STRATEGIES, make_plan
from workbench.comm.topology import topology_of
from workbench.comm.transport import TorchTransport
from workbench.spec.dispatch import Dispatch
from workbench.workload.data import rank_activations
from workbench.workload.traffic import route_all

DEVICE = [torch.device("cpu")]


class Corrupted(TorchTransport):
    """Changes one byte of the first row that arrives in each exchange."""

    def carry(self, rows, hop):
        return self._spoiled(super().carry(rows, hop))

    def carry_back(self, rows, hop):
        return self._spoiled(super().carry_back(rows, hop))

    def _spoiled(self, received):
        if received.shape[0] and self.place is not None:
            received[0, self.place] += 64  # adding, because a row may come by twice
        return received


def open_transport(cell, rank, world, kind=TorchTransport):
    group = dist.group.WORLD if world > 1 else None
    return kind(group, rank=rank, world=world, topology=topology_of(cell), device=DEVICE[0])


def layer_case(world, *, strategy, dtype):
    cell = make_cell(ranks=world, tokens=33, experts=16, top_k=4, hidden=384, redundant=-16 % world,
                     dispatch=Dispatch(strategy=strategy, dispatch_dtype=dtype))  # fmt: skip
    traffic = route_all(cell)
    return cell, traffic, make_plan(cell, traffic, expert_map_of(cell, traffic))


def check_identity_experts_give_the_weights_back(rank, world):
    for strategy, dtype in (("flat", "bf16"), ("node_dedup", "fp8_block"), ("flat_padded", "nvfp4")):
        cell, traffic, plan = layer_case(world, strategy=strategy, dtype=dtype)
        mine, transport = prepare_rank(plan, rank=rank, device=DEVICE[0]), open_transport(cell, rank, world)
        encoded = encode_rows(rank_activations(cell, rank=rank).to(DEVICE[0]), dtype)
        buffer = dispatch(mine, transport, encoded)
        values, weights = decode_rows(buffer, 384, dtype), received_ids(mine, buffer)[1]
        rows = (values.float().unsqueeze(1) * weights.unsqueeze(2)).sum(1)
        pairs = values[torch.from_numpy(mine.arrivals.rows).to(values.device)]
        torch.testing.assert_close(reduce_pairs(mine, pairs), rows, rtol=1e-5, atol=1e-5)
        y = combine(mine, transport, rows, dtype="bf16")
        assert torch.equal(y, combine(mine, transport, rows, dtype="bf16")), "combine is not deterministic"
        wanted = decode_rows(encoded, 384, dtype).cpu() * torch.from_numpy(traffic.weights[rank].sum(1, keepdims=True))
        error = (y.cpu() - wanted).norm() / wanted.norm()
        assert error < 4e-3, f"identity combine is off by {error}"


def check_corruption_is_caught(rank, world):
    for strategy in ("flat", "node_dedup"):
        cell, _, plan = layer_case(world, strategy=strategy, dtype="fp8_block")
        mine = prepare_rank(plan, rank=rank, device=DEVICE[0])
        encoded = [encode_rows(rank_activations(cell, rank=peer), "fp8_block") for peer in range(world)]
        transport = open_transport(cell, rank, world, Corrupted)
        for place, in_payload in ((5, True), (384 + 2, True), (encoded_bytes(384, "fp8_block"), False), (-1, False)):
            transport.place = place
            buffer = dispatch(mine, transport, encoded[rank].to(DEVICE[0]))
            assert not torch.equal(buffer.cpu(), expected_buffer(plan, rank, encoded)), f"byte {place} went unseen"
            if not in_payload and strategy == "flat":
                with pytest.raises(DispatchMismatch):
                    verify_arrivals(mine, *received_ids(mine, buffer))
        transport.place = None
        rows = decode_rows(dispatch(mine, transport, encoded[rank].to(DEVICE[0])), 384, "fp8_block").float()
        y = combine(mine, transport, rows, dtype="bf16")
        transport.place = 1
        assert not torch.equal(combine(mine, transport, rows, dtype="bf16"), y), "corrupt combine went unseen"


def check_wrong_counts_are_caught(rank, world):
    cell, _, plan = layer_case(world, strategy="flat", dtype="bf16")
    mine = prepare_rank(plan, rank=rank, device=DEVICE[0])
    mine.hops[0].recv_counts[0] += 1
    x_bytes = encode_rows(rank_activations(cell, rank=rank).to(DEVICE[0]), "bf16")
    with pytest.raises(DispatchMismatch, match=f"rank {rank}: row counts"):
        dispatch(mine, open_transport(cell, rank, world), x_bytes)


def check_n01(rank, world):
    cell = make_cell(ranks=world)
    transport = open_transport(cell, rank, world)
    some = np.zeros((world, world), int)
    some[1, 0], some[1, 1] = 3, 2
    for matrix in (some, np.zeros((world, world), int)):
        start = time.monotonic()
        received_counts = transport.exchange_counts(matrix[rank].tolist())
        assert received_counts == matrix[:, rank].tolist()
        rows = torch.arange(matrix[rank].sum() * 4, dtype=torch.uint8, device=DEVICE[0]).reshape(-1, 4) + rank
        got = transport.exchange_rows(rows, matrix[rank].tolist(), received_counts)
        sent = torch.arange(matrix[1].sum() * 4, dtype=torch.uint8).reshape(-1, 4) + 1
        assert torch.equal(got.cpu(), sent.split(matrix[1].tolist())[rank]), got
        assert time.monotonic() - start < 10


def check_n03(rank, world):
    transport = open_transport(make_cell(ranks=world), rank, world)
    eight, even = torch.zeros(8, 4, dtype=torch.uint8, device=DEVICE[0]), [8 // world] * world
    refusals = (
        (eight, [7] + [0] * (world - 1), even, "sum to 7, but there are 8 rows"),
        (eight, [4, 2, 2, 0, 0], even, f"5 entries for {world} ranks"),
        (eight, even, [8], f"1 entries for {world} ranks"),
        (eight[:7], None, None, f"7 rows do not divide over {world} ranks"),
        (eight, [9, -1] + [0] * (world - 2), even, "negative"),
        (eight, even, None, "both or neither"),
    )
    for rows, send, receive, message in refusals:
        with pytest.raises(ValueError, match=message):
            transport.exchange_rows(rows, send, receive)
    assert transport.counters.self_bytes == 0
    whole = eight[: 8 - 8 % world]
    assert torch.equal(transport.exchange_rows(whole), whole)


def check_a_missing_peer_ends_in_an_error(rank, world):
    """Rank 0 waits for the others, who do not come, no longer than the group allows."""
    for strategy in ("flat_padded", "pairwise", "low_latency", "allgather_reduce_scatter"):
        cell, _, plan = layer_case(world, strategy=strategy, dtype="bf16")
        group = dist.new_group(timeout=timedelta(seconds=1))
        if rank == 0:
            transport = TorchTransport(group, rank=0, world=world, topology=topology_of(cell), device=DEVICE[0])
            hop = prepare_rank(plan, rank=0, device=DEVICE[0]).hops[0]
            rows = torch.zeros(len(hop.send_rows), 64, dtype=torch.uint8, device=DEVICE[0])
            start = time.monotonic()
            with pytest.raises(RuntimeError):
                transport.carry(rows, hop)
            assert time.monotonic() - start < 10
        dist.barrier()


def check_memory_given_and_kept(rank, world):
    """``out`` is where rows go; a hop's own memory is its own, whatever else is carried in between."""
    cell, _, plan = layer_case(world, strategy="flat", dtype="bf16")
    transport = open_transport(cell, rank, world)
    rows = torch.full((world, 3), rank, dtype=torch.uint8, device=DEVICE[0])
    out = torch.empty_like(rows)
    assert transport.exchange_rows(rows, out=out) is out
    assert out[:, 0].tolist() == list(range(world))
    hop = prepare_rank(plan, rank=rank, device=DEVICE[0]).hops[0]
    sent = torch.full((len(hop.send_rows), 5), rank, dtype=torch.uint8, device=DEVICE[0])
    first = transport.carry(sent, hop)
    back = transport.carry_back(first, hop)
    transport.carry(torch.zeros(len(hop.send_rows), 6, dtype=torch.uint8, device=DEVICE[0]), hop)
    sources = [peer for peer, count in enumerate(hop.recv_counts) for _ in range(count)]
    assert first[:, 4].tolist() == sources
    assert torch.equal(back, sent), "what is carried back is what was sent"


def check_one_gather_is_the_blocks_one_by_one(rank, world):
    """A backend with messages in batches gathers at once, by a call that no torch deprecates."""
    rows, counts = torch.full((3, 5), rank, dtype=torch.uint8), [3] * world
    came = []
    for batched in (True, False):
        exchange = Exchange(torch.empty(3 * world, 5, dtype=torch.uint8), rows, counts, counts, None, rank)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            carry(exchange, "all_gather", rounds=(), whole=False, batched=batched)
        came.append(exchange.received)
    assert torch.equal(*came)
    assert came[0][:, 0].tolist() == [peer for peer in range(world) for _ in range(3)]


def check_replicas_and_none(rank, world):
    cell = make_cell(ranks=world, tokens=12, experts=14, top_k=4, hidden=64, redundant=-14 % world)
    traffic = route_all(cell)
    expert_map = expert_map_of(cell, traffic)
    slots = to_slots(expert_map, traffic.ids)
    x = encode_rows(rank_activations(cell, rank=rank).to(DEVICE[0]), "bf16")
    for strategy in ("none", "flat"):
        topology = topology_of(cell)
        plan = STRATEGIES[strategy](
            slots, traffic.weights, slots_per_rank=expert_map.slots_per_rank, topology=topology, tokens_R=(12,) * world
        )
        mine = prepare_rank(plan, rank=rank, device=DEVICE[0])
        transport = open_transport(cell, rank, world)
        buffer = dispatch(mine, transport, x)
        ids, weights = received_ids(mine, buffer)
        verify_arrivals(mine, ids, weights)
        values = decode_rows(buffer, 64, "bf16").float()
        y = combine(mine, transport, values * weights.sum(1, keepdim=True), dtype="bf16")
        wanted = decode_rows(x, 64, "bf16").float() * torch.from_numpy(traffic.weights[rank].sum(1, keepdims=True)).to(
            x.device
        )
        assert (y - wanted).norm() / wanted.norm() < 4e-3


def on_a_transport(check, **case):
    """A check that takes the transport of the exchange cases."""

    def run(rank, world):
        check(rank, world, **case, transport=open_transport(routed(world, "uniform")[0], rank, world))

    return run


def checks(world):
    cases = {"refusals": on_a_transport(check_refusals), "replicas": check_replicas_and_none,
             "identity": check_identity_experts_give_the_weights_back,
             "node_pairs": on_a_transport(check_node_dedup_crosses_once_a_pair)}  # fmt: skip
    if world > 1:
        cases |= {"n01": check_n01, "n03": check_n03, "counts": check_wrong_counts_are_caught,
                  "corruption": check_corruption_is_caught, "memory": check_memory_given_and_kept}  # fmt: skip
    if world == 2 and DEVICE[0].type == "cpu":  # a message of NCCL's fails later, on its stream
        cases["gather"] = check_one_gather_is_the_blocks_one_by_one
        cases["missing"] = check_a_missing_peer_ends_in_an_error
    for name, variant, dtype, kind in exchange_cases():
        cases[name] = on_a_transport(check_exchange, variant=variant, dtype=dtype, kind=kind)
    return cases


def run_rank(rank: int, world: int, folder: Path, backend: str) -> None:
    torch.set_num_threads(1)
    if backend != "gloo":
        DEVICE[0] = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(DEVICE[0])
    dist.init_process_group(
        backend.split("-")[0], init_method=f"file://{folder}/rendezvous-{world}", rank=rank, world_size=world,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    seen = dict.fromkeys(checks(world), "not reached")
    for name, check in checks(world).items():
        try:
            check(rank, world)
            seen[name] = "ok"
        except Exception:
            seen[name] = traceback.format_exc()
            break  # the other ranks are waiting in another exchange now
    (folder / f"{world}-{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


def main(folder: Path, backend: str, worlds: list[int]) -> None:
    fork = multiprocessing.get_context("fork")
    for world in worlds:
        ranks = [fork.Process(target=run_rank, args=(rank, world, folder, backend)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [int(world) for world in sys.argv[3:]])
