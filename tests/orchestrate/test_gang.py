"""Gangs of real processes with real collectives between them, and what ends them."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from workbench.orchestrate import gang as gang_module
from workbench.orchestrate.actor import RankFailure
from workbench.orchestrate.gang import GangLost, ask_gang, await_gang, begin_gang, end_gang, reopen_gang
from workbench.orchestrate.placement import GangShape, Infeasible
from workbench.orchestrate.ranks import MAX_LOSSES, Ranks
from workbench.orchestrate.stopping import Stopped

FOUR = GangShape(world=4, device="cpu", ranks_per_node=2)
TWO = GangShape(world=2, device="cpu", ranks_per_node=2)
LIMIT_S = 60.0


def tasks():
    """Tasks as closures, which travel by value: the ranks cannot import this file."""

    def exchange(context, cell):
        import torch
        import torch.distributed as dist

        sent = torch.full((context.world,), float(context.rank))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return received.tolist()

    def exit_in_exchange(context, cell):
        if context.rank == 2:
            os._exit(1)
        return exchange(context, cell)

    def raise_alone(context, cell):
        if context.rank == 1:
            raise KeyError("only here")
        return exchange(context, cell)

    def raise_together(context, cell):
        raise ValueError(f"rank {context.rank} cannot")

    def wait_long(context, cell):
        time.sleep(600)

    def eight_megabytes(context, cell):
        import numpy as np

        return np.full(10**6, context.rank, np.float64)

    def surroundings(context, cell):
        import torch

        return os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count(), torch.get_num_threads(), os.getpid()

    return locals()


TASKS = tasks()


@pytest.fixture
def four(session):
    """A gang of four CPU ranks on two virtual nodes."""
    gang = await_gang(begin_gang(session, FOUR))
    yield gang
    end_gang(gang)


@pytest.fixture(scope="module")
def two(session):
    """A gang of two CPU ranks that the tests of this module share; they leave it whole."""
    gang = await_gang(begin_gang(session, TWO))
    yield gang
    end_gang(gang)


def test_w04_a_rank_that_dies_in_the_exchange_is_named_and_the_others_stopped(session, four):
    assert ask_gang(four, TASKS["exchange"], None, limit_s=LIMIT_S) == [[0.0, 1.0, 2.0, 3.0]] * 4
    pids = [fact.pid for fact in four.facts]
    started = time.monotonic()
    with pytest.raises(GangLost, match="rank 2 died while running the cell") as caught:
        ask_gang(four, TASKS["exit_in_exchange"], None, limit_s=LIMIT_S)
    assert time.monotonic() - started < 15
    assert caught.value.ranks == (2,)
    end_gang(four)
    assert _all_gone(pids, within_s=10)


def test_w04_a_gang_comes_up_after_another_was_lost(two):
    assert ask_gang(two, TASKS["exchange"], None, limit_s=LIMIT_S) == [[0.0, 1.0]] * 2


def test_w03_a_cpu_rank_sees_no_gpu_and_says_so(two):
    for visible, num_gpus, num_threads, pid in ask_gang(two, TASKS["surroundings"], None, limit_s=LIMIT_S):
        assert (visible, num_gpus) == ("", 0)
        assert num_threads == max(1, os.cpu_count() // 2)
        assert pid != os.getpid()
    assert {(fact.device, fact.cuda_visible_devices, fact.num_gpus_seen) for fact in two.facts} == {("cpu", "", 0)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_w03_a_gpu_rank_has_its_own_gpu(session):
    gang = await_gang(begin_gang(session, GangShape(world=1, device="cuda", ranks_per_node=1)))
    (fact,) = gang.facts
    end_gang(gang)
    assert (fact.device, fact.num_gpus_seen) == ("cuda", 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_w03_a_gpu_gang_never_falls_back_to_the_cpu(session):
    with pytest.raises(Infeasible, match="asked for 1 cuda rank on one node"):
        begin_gang(session, GangShape(world=1, device="cuda", ranks_per_node=1))


def test_ranks_that_all_raise_keep_their_processes(two):
    before = [fact.pid for fact in two.facts]
    answers = ask_gang(two, TASKS["raise_together"], None, limit_s=LIMIT_S)
    assert [answer.message for answer in answers] == ["ValueError: rank 0 cannot", "ValueError: rank 1 cannot"]
    assert all(isinstance(answer, RankFailure) and "raise_together" in answer.trace for answer in answers)
    reopen_gang(two)
    assert ask_gang(two, TASKS["exchange"], None, limit_s=LIMIT_S) == [[0.0, 1.0]] * 2
    assert [answer[3] for answer in ask_gang(two, TASKS["surroundings"], None, limit_s=LIMIT_S)] == before


def test_w09_large_answers_are_let_go(session, two):
    """800 MB pass through a store of 100 MB: kept references would spill to disk, copies would fill this process."""
    used = []
    for _ in range(50):
        answers = ask_gang(two, TASKS["eight_megabytes"], None, limit_s=LIMIT_S)
        assert [float(answer[0]) for answer in answers] == [0.0, 1.0]
        del answers
        used.append(psutil.Process().memory_info().rss)
    assert max(used[25:]) - used[10] < 64 * 2**20
    spilled = [path for path in Path(session.temp_dir).rglob("*") if "spilled" in str(path) and path.is_file()]
    assert spilled == []


def test_a_rank_that_raises_alone_is_blamed_not_those_that_wait_for_it(session, monkeypatch):
    monkeypatch.setattr(gang_module, "GRACE_S", 1.0)
    gang = await_gang(begin_gang(session, TWO))
    with pytest.raises(GangLost, match="rank 1 raised KeyError: 'only here', and rank 0 waited"):
        ask_gang(gang, TASKS["raise_alone"], None, limit_s=LIMIT_S)
    with pytest.raises(GangLost, match="no answer from rank"):  # rank 0 is still in its collective
        ask_gang(gang, TASKS["wait_long"], None, limit_s=0.5)
    end_gang(gang)


def test_a_hung_rank_ends_the_cell_at_its_limit_and_a_stop_ends_it_sooner(session, exchange_cells):
    (cell,) = exchange_cells(1)
    notes = []
    ranks = Ranks(session, should_stop=lambda: False, note=notes.append, allowance_s=1.0)
    outcome = ranks.measure(cell, TASKS["wait_long"])
    assert outcome.record.status == "error"
    assert outcome.record.reason == "no answer from ranks 0, 1 within 1 s while running the cell"
    asked = threading.Event()
    ranks = Ranks(session, should_stop=asked.is_set, note=notes.append)
    threading.Timer(8.0, asked.set).start()
    with pytest.raises(Stopped):
        ranks.measure(cell, TASKS["wait_long"])
    assert ranks.gang is None


def test_a_gang_lost_three_times_in_a_row_stays_down(session, exchange_cells):
    (cell,) = exchange_cells(1, "parallel.ranks=[0]")

    def die(context, cell):
        os.kill(os.getpid(), signal.SIGKILL)

    ranks = Ranks(session, should_stop=lambda: False, note=lambda text: None)
    reasons = [ranks.measure(cell, die).record.reason for _ in range(MAX_LOSSES + 1)]
    assert all(reason.startswith("rank 0 died") for reason in reasons[:-1])
    assert reasons[-1].startswith("not run: the gang of 1 cpu rank was lost 3 times in a row (rank 0 died")


def _all_gone(pids, *, within_s):
    deadline = time.monotonic() + within_s
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
