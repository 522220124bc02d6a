"""The hosts themselves: their links carry what they say, can be cut, and nothing of them outlives its maker."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.cluster.hosts import GOODPUT, ROOT, Hosts

NUM_BYTES = 5_000_000
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000), timeout=20) as link:
    link.sendall(bytes(int(sys.argv[2])))
"""
RECEIVE = """
import socket, sys, threading, time
server = socket.create_server(("", 5000))
print("listening", flush=True)
def drain(link):
    while link.recv(2**20):
        pass
threads, start = [], None
for _ in range(int(sys.argv[1])):
    link, _ = server.accept()
    start = start or time.monotonic()
    threads.append(threading.Thread(target=drain, args=(link,)))
    threads[-1].start()
for thread in threads:
    thread.join()
print(time.monotonic() - start)
"""
MAKER = """
import os, sys, time
from tests.cluster.hosts import Hosts
with Hosts(ray=False) as hosts:
    inside = hosts.start(1, ["sleep", "3600"])
    print(*[space.pid for space in hosts._hosts], inside.pid, flush=True)
    time.sleep(3600)
"""


def send(hosts, sources, to):
    """Seconds that 5 MB from each of ``sources`` to host ``to`` take."""
    receiver = hosts.start(to, [sys.executable, "-c", RECEIVE, str(len(sources))])
    assert receiver.stdout.readline() == "listening\n"
    senders = [hosts.start(source, [sys.executable, "-c", SEND, hosts.ip(to), str(NUM_BYTES)]) for source in sources]
    seconds = float(receiver.communicate(timeout=60)[0])
    assert [sender.wait(timeout=10) for sender in senders] == [0] * len(sources)
    return seconds


def test_a_link_carries_its_rate_and_a_host_is_reached_at_one_rate_by_all(links):
    ideal = NUM_BYTES / (200e6 / 8 * GOODPUT)
    assert send(links, [0], to=2) == pytest.approx(ideal, rel=0.1)
    assert send(links, [0, 1], to=2) == pytest.approx(2 * ideal, rel=0.1)
    assert send(links, [2], to=2) < 0.5 * ideal
    assert links.drops() == 0


def test_a_rate_can_be_changed(links):
    links.set_rate(400)
    seconds = send(links, [0], to=1)
    links.set_rate(200)
    assert seconds == pytest.approx(NUM_BYTES / (400e6 / 8 * GOODPUT), rel=0.1)


def test_a_cut_link_carries_nothing_until_it_is_restored(links):
    probe = [sys.executable, "-c", SEND.replace("20", "1"), links.ip(0), "0"]
    server = links.start(0, [sys.executable, "-c", RECEIVE, "1"])
    assert server.stdout.readline() == "listening\n"
    links.cut(0)
    assert links.run(1, probe, timeout=20).returncode != 0
    links.restore(0)
    deadline = time.monotonic() + 20
    while links.run(1, probe, timeout=20).returncode and time.monotonic() < deadline:
        time.sleep(0.1)
    assert server.wait(timeout=10) == 0


def test_hosts_end_with_their_maker_however_it_ends(namespaces):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    maker = subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True, env=environment)
    pids = [int(pid) for pid in maker.stdout.readline().split()]
    assert len(pids) == 4
    assert all(psutil.pid_exists(pid) for pid in pids)
    maker.send_signal(signal.SIGKILL)
    maker.communicate(timeout=10)
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_two_sets_of_hosts_stand_side_by_side(links):
    with Hosts(num_hosts=2, ray=False) as others:
        assert others.run(1, ["hostname"], timeout=10).stdout == "h1\n"
        assert links.run(2, ["hostname"], timeout=10).stdout == "h2\n"
    assert links.run(2, ["hostname"], timeout=10).stdout == "h2\n"
