"""A gang of rank actors: placed together, started together, asked together, and ended together."""

import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from workbench.orchestrate.actor import RankActor, RankFacts, RankFailure, Task
from workbench.orchestrate.placement import (
    GangShape,
    Infeasible,
    Layout,
    Node,
    asked,
    existing,
    gpu_hint,
    lay_out,
    seat,
)
from workbench.orchestrate.session import Session
from workbench.orchestrate.stopping import Stopped
from workbench.spec.scenario import Cell

PLACE_S = 25.0
START_S = 120.0
GROUP_TIMEOUT_S = 1800.0
GRACE_S = 10.0
"""How long the others may still answer after one raised: one of them may hold the cause."""
DEAD_GRACE_S = 3.0
"""The same after one died, which is cause enough; others of its node may follow."""
_POLL_S = 0.25


class GangLost(Exception):
    """The gang cannot go on: a rank died, did not answer, or did not start. ``ranks`` are those to blame."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        self.ranks = ranks
        super().__init__(message)


@dataclass
class Gang:
    """Handles of a gang. ``facts`` is filled when its ranks are up."""

    session: Session
    shape: GangShape
    layout: Layout
    group: PlacementGroup
    actors: tuple[Any, ...]
    warming: list[ray.ObjectRef]
    facts: tuple[RankFacts, ...] = field(default=())


def never() -> bool:
    return False


def begin_gang(session: Session, shape: GangShape) -> Gang:
    """Ask for the processes of a gang and return at once. Raises Infeasible when the cluster can never hold it."""
    layout = lay_out(shape, _living_nodes(), slot=session.slot)
    group = placement_group([dict(bundle) for bundle in layout.bundles], strategy=layout.strategy)
    threads = max(1, session.cores // shape.world) if session.is_local else 1
    actors = tuple(_actor(session, shape, layout, group, rank, threads) for rank in range(shape.world))
    return Gang(session, shape, layout, group, actors, [actor.warm.remote() for actor in actors])


def await_gang(gang: Gang, *, should_stop: Callable[[], bool] = never) -> Gang:
    """Wait until every rank has joined the process group.

    Raises Infeasible when the cluster stays too full for 25 s, GangLost when ranks do not come up, Stopped.
    """
    _await_place(gang, should_stop)
    facts = _collect(gang, gang.warming, "starting", START_S, should_stop)
    order = seat(gang.layout, [(fact.address, fact.node) for fact in facts])
    gang.actors = tuple(gang.actors[process] for process in order)
    gang.facts = tuple(replace(facts[process], rank=rank) for rank, process in enumerate(order))
    gang.warming = []
    blind = [fact for fact in gang.facts if gang.shape.device == "cuda" and fact.num_gpus_seen == 0]
    if blind:
        value = blind[0].cuda_visible_devices
        mend = "unset the variable, or list GPUs that exist (nvidia-smi -L)"
        raise Infeasible(f"rank {blind[0].rank} sees no GPU with CUDA_VISIBLE_DEVICES={value!r}; {mend}")
    reopen_gang(gang, should_stop=should_stop)
    return gang


def reopen_gang(gang: Gang, *, should_stop: Callable[[], bool] = never) -> None:
    """Give the living ranks a fresh process group. Raises GangLost, Stopped."""
    first = gang.actors[0].rendezvous.remote(gang.session.is_local, gang.session.temp_dir, secrets.token_hex(4))
    (init_method,) = _collect(gang, [first], "choosing a meeting point", START_S, should_stop)
    opening = [
        actor.open.remote(
            fact.rank,
            gang.shape.world,
            gang.shape.ranks_per_node,
            init_method,
            GROUP_TIMEOUT_S,
            address=None if gang.session.is_local else fact.address,
        )
        for actor, fact in zip(gang.actors, gang.facts, strict=True)
    ]
    _collect(gang, opening, "forming the process group", START_S, should_stop)


def ask_gang(
    gang: Gang, task: Task, cell: Cell, *, limit_s: float, should_stop: Callable[[], bool] = never
) -> list[Any | RankFailure]:
    """``task(context, cell)`` on every rank, one call each; answers by rank, a RankFailure where a task raised.

    Raises GangLost when a rank dies or the limit passes (the gang is then unusable), Stopped.
    """
    answers = [actor.run.remote(task, cell) for actor in gang.actors]
    return _collect(gang, answers, "running the cell", limit_s, should_stop)


def end_gang(gang: Gang) -> None:
    """Kill the ranks and give the place back."""
    for actor in gang.actors:
        ray.kill(actor)
    remove_placement_group(gang.group)


def _actor(
    session: Session, shape: GangShape, layout: Layout, group: PlacementGroup, rank: int, num_threads: int
) -> Any:
    on_gpu = shape.device == "cuda"
    options = {
        "num_cpus": 1 if not on_gpu and session.slot == "CPU" else 0,
        "num_gpus": 1 if on_gpu else 0,
        "resources": {session.slot: 1} if not on_gpu and session.slot != "CPU" else None,
        "max_restarts": 0,
        "runtime_env": {"env_vars": rank_environment(session, device=shape.device, num_threads=num_threads)},
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=layout.bundle_of[rank]
        ),
    }
    return ray.remote(RankActor).options(**options).remote(rank, shape.device, num_threads)


def rank_environment(session: Session, *, device: str, num_threads: int) -> dict[str, str]:
    """Environment of a rank's process. A CPU rank sees no GPU; Ray's own value stands for a GPU rank."""
    settings = {"OMP_NUM_THREADS": str(num_threads)}
    if device == "cpu":
        settings["CUDA_VISIBLE_DEVICES"] = ""
    if session.is_local:
        loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        settings |= {name: os.environ.get(name, value) for name, value in loopback.items()}
    return settings


def _living_nodes() -> list[Node]:
    alive = [node for node in ray.nodes() if node["Alive"]]
    return [Node(node["NodeManagerAddress"], node["Resources"]) for node in alive]


def _await_place(gang: Gang, should_stop: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PLACE_S
    while not gang.group.wait(_POLL_S):
        if should_stop():
            raise Stopped
        if time.monotonic() > deadline:
            resource = next(iter(gang.layout.bundles[0]))
            free = ray.available_resources().get(resource, 0)
            raise Infeasible(
                f"{asked(gang.shape, resource)}; {existing(_living_nodes(), resource)}, of which {free:g} "
                f"{resource} stayed free for {PLACE_S:.0f} s{gpu_hint(gang.shape, os.environ)}"
            )


def _collect(
    gang: Gang, refs: list[ray.ObjectRef], what: str, limit_s: float, should_stop: Callable[[], bool]
) -> list[Any]:
    """Answers in the order of ``refs``. After a first fault the others get a grace, so that its cause is named."""
    deadline = time.monotonic() + limit_s
    answers: dict[int, Any] = {}
    waiting = list(refs)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_S)
        fresh = {refs.index(ref): _answer(ref) for ref in done}
        answers |= fresh
        if any(isinstance(answer, RayActorError) for answer in fresh.values()):
            deadline = min(deadline, time.monotonic() + DEAD_GRACE_S)
        elif any(isinstance(answer, RayError | RankFailure) for answer in fresh.values()):
            deadline = min(deadline, time.monotonic() + GRACE_S)
        if waiting and should_stop():
            raise Stopped
        if time.monotonic() > deadline:
            break
    late = tuple(sorted(refs.index(ref) for ref in waiting))
    lost = _lost(answers, late, what, limit_s)
    if lost is not None:
        raise lost
    return [answers[rank] for rank in range(len(refs))]


def _answer(ref: ray.ObjectRef) -> Any:
    try:
        return ray.get(ref, timeout=START_S)
    except RayError as error:
        return error


def _lost(answers: dict[int, Any], late: tuple[int, ...], what: str, limit_s: float) -> GangLost | None:
    """Whose fault it is that a gang cannot go on: the dead before those that raised, and those before the silent."""
    dead = {rank: answer for rank, answer in answers.items() if isinstance(answer, RayActorError)}
    if dead:
        return GangLost(f"{_names(tuple(sorted(dead)))} died while {what}: {_why(min(dead.items())[1])}", tuple(dead))
    for rank, answer in sorted(answers.items()):
        if isinstance(answer, RayError):
            return GangLost(f"rank {rank} failed while {what}: {_why(answer)}", (rank,))
        if late and isinstance(answer, RankFailure):
            return GangLost(f"rank {rank} raised {answer.message}, and {_names(late)} waited for it in vain", (rank,))
    if late:
        return GangLost(f"no answer from {_names(late)} within {limit_s:.0f} s while {what}", late)
    return None


def _why(error: Exception) -> str:
    """The telling part of one of Ray's long messages, on one line."""
    text = str(error.cause if isinstance(error, RayTaskError) else error)
    if "low on memory" in text or "OutOfMemory" in text:
        return "out of memory; take fewer ranks or a smaller model"
    if "node has died" in text or "node was terminated" in text:
        return "its node left the cluster (the host is down, or its link)"
    exit_type = re.search(r"Worker exit type: (\w+)", text)
    if exit_type:
        return f"its process ended ({exit_type[1]}: killed, crashed or out of memory)"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _names(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(str(rank) for rank in ranks)}"
