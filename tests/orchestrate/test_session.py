"""Sessions: our own cluster, and joining another."""

import os
import socket
import subprocess
import sys
import time

import psutil
import pytest
import ray

from workbench.orchestrate import join
from workbench.orchestrate.gang import ask_gang, await_gang, begin_gang, end_gang
from workbench.orchestrate.join import SessionError, explain_join
from workbench.orchestrate.placement import GangShape
from workbench.orchestrate.session import open_session, rank_slots

OTHER_RAY = "0.0.1"
HEAD = """
import sys, ray
from ray.cluster_utils import Cluster
ray.__version__ = sys.argv[1] or ray.__version__
size = {"num_cpus": 1, "object_store_memory": 80_000_000}
cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
for _ in range(int(sys.argv[2])):
    cluster.add_node(**size)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture
def foreign_head():
    """``start(version, more_nodes)``: a Ray cluster of another process that says it is of that version; its address."""
    started = []

    def start(version="", more_nodes=0):
        environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
        head = subprocess.Popen(
            [sys.executable, "-c", HEAD, version, str(more_nodes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=environment,
        )  # fmt: skip
        started.append(head)
        return head.stdout.readline().strip()

    yield start
    for head in started:
        head.communicate("", timeout=30)


def test_w14_own_cluster_whatever_ray_address_says(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    for _ in range(2):
        started = time.monotonic()
        with open_session() as session:
            assert session.is_local
            assert ray.cluster_resources()["rank_slot"] >= 4
            assert os.environ["RAY_AUTH_MODE"] == "disabled"
            assert _foreign_listeners() == []
            folder = session.temp_dir
        assert time.monotonic() - started < 30
        assert not ray.is_initialized()
        assert not os.path.exists(folder)
    assert "RAY_AUTH_MODE" not in os.environ


def _foreign_listeners():
    """Listening sockets of our Ray processes that other machines could reach."""
    ours = psutil.Process().children(recursive=True)
    sockets = [each for child in ours for each in child.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    assert sockets
    return [each.laddr for each in sockets if each.laddr.ip not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", "nothing listens there"),
        ("127.0.0.1", "host:port"),
        ("ray://127.0.0.1:10001", "host:port"),
        ("127.0.0.1:999999", "nothing listens there"),
    ],
)
def test_w14_unreachable_address_is_told_at_once(address, words):
    started = time.monotonic()
    with pytest.raises(SessionError, match=words) as caught, open_session(address):
        pass
    assert time.monotonic() - started < 15
    assert address in str(caught.value)
    assert "\n" not in str(caught.value)


def test_w14_a_port_that_is_not_rays_is_told_in_time(monkeypatch):
    monkeypatch.setattr(join, "ANSWER_S", 4.0)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(SessionError, match="not Ray's"), open_session(f"127.0.0.1:{silent.getsockname()[1]}"):
            pass


def test_w07_another_version_is_one_line_with_both(monkeypatch, foreign_head):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    address = foreign_head(OTHER_RAY)
    with pytest.raises(SessionError) as caught, open_session(address):
        pass
    text = str(caught.value)
    assert f"Ray {OTHER_RAY}" in text
    assert f"Ray {ray.__version__}" in text
    assert f"pip install ray=={OTHER_RAY}" in text or f"install ray=={OTHER_RAY}" in text
    assert "\n" not in text


def test_w07_another_python_is_named_with_its_mend():
    text = explain_join(
        "10.0.0.1:6379",
        "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.12.3\n"
        "This process on node 10.0.0.2 was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n",
    )
    assert "the cluster runs Ray 2.60.0 on Python 3.12.3, this process Ray 2.60.0 on Python 3.11.7" in text
    assert "install ray==2.60.0 under Python 3.12.3 here" in text
    assert "\n" not in text


def test_ranks_of_two_nodes_are_spread_over_a_joined_cluster(monkeypatch, foreign_head, tmp_path):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.chdir(tmp_path)  # the ranks must not find this checkout by their working directory
    address = foreign_head(more_nodes=1)
    with open_session(address) as session:
        assert (session.is_local, session.slot, session.cores) == (False, "CPU", 2)
        assert os.environ["RAY_AUTH_MODE"] == "disabled"
        gang = await_gang(begin_gang(session, GangShape(world=2, device="cpu", ranks_per_node=1)))
        assert gang.layout.strategy == "STRICT_SPREAD"

        def node_and_code(context, cell):
            import ray

            import workbench

            return ray.get_runtime_context().get_node_id(), workbench.__file__, context.gather([context.rank]).tolist()

        (first, code, ranks), (second, _, _) = ask_gang(gang, node_and_code, None, limit_s=60)
        end_gang(gang)
        assert first != second
        assert "runtime_resources" in code
        assert ranks == [[0.0], [1.0]]


def test_a_shared_cluster_is_joined_with_a_token_unless_told_otherwise():
    text = explain_join("10.0.0.1:6379", "AuthenticationError: Token authentication is enabled but no token was found")
    assert "RAY_AUTH_MODE=token" in text
    assert "RAY_AUTH_MODE=disabled" in text


def test_rank_slots_follow_memory_and_never_fall_below_four():
    assert rank_slots(cores=2, memory_bytes=10 * 2**30) == 16
    assert rank_slots(cores=2, memory_bytes=2**30) == 4
    assert rank_slots(cores=64, memory_bytes=2**30) == 64
