"""Several hosts on one machine: network namespaces, shaped links between them, a Ray cluster over them.

Each host has its own network, mounts, host name and process ids; the machine's files and cores are shared. Host h has
the address 10.77.0.1h on ``eth0``, whose veth ends at a bridge in a namespace of its own. Both ends of that veth are
shaped: leaving the host, and coming to it, so that traffic into one host queues as at a switch. At either end each
other host has a queue of its own and they take turns, as in a switch with virtual output queues; with one queue for
all, traffic to a busy host holds up that to an idle one, and what is measured is the queue. Queues hold all that the
windows of the sockets let fly (64 MB, windows of at most 1 MB), so nothing is dropped, as in a lossless fabric. A host
reaches itself over ``lo``, unshaped.

Everything is held by processes whose parent-death signal is KILL: when the process that made the hosts ends, however
it ends, the kernel takes their process ids, and with these their networks and mounts, away. Nothing has a name in the
machine's own namespaces, so several of these may stand side by side.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
PORT = 6379
QUEUE_BYTES = 64 * 2**20
WINDOW_BYTES = 2**20
BURST_BYTES = 2**17
QUANTUM_BYTES = 70_000
"""A turn of a queue: above the largest packet that TCP hands over whole, so that turns are equal in bytes."""
GOODPUT = 1448 / 1514
"""Payload of a full frame: 1514 bytes on the shaped link carry 1448 of a TCP stream (headers and a timestamp)."""
RAY_TMP = "/tmp/ray"
FOLDER = "moewb-hosts-"
START_S = 90.0
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
    # Ray's job server and what it starts take `python` and `ray` from the PATH.
    "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
    # A host whose link is down counts as dead after 3 checks unanswered for 2 s; left unset it takes a minute.
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    "RAY_prestart_worker_first_driver": "0",
}
DROPPED = ("RAY_ADDRESS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "PYTEST_CURRENT_TEST")
# Reno and no memory of earlier connections, so that a run does not hang on what the machine prefers (a sender that
# measures the path, as bbr does, slows down to look). Windows as large from the start as they will be.
NETWORK = f"""
set -e
ip link set lo up
cd /proc/sys/net/ipv4
echo reno > tcp_congestion_control
echo 0 > tcp_slow_start_after_idle
echo 1 > tcp_no_metrics_save
echo "4096 {WINDOW_BYTES} {WINDOW_BYTES}" > tcp_rmem
echo "4096 {WINDOW_BYTES} {WINDOW_BYTES}" > tcp_wmem
cd /
"""
STAY = "set +e; echo ready; while :; do sleep 3600; done"  # bash, as process 1 of a host, also reaps what is left over


@dataclass(frozen=True)
class Space:
    """Namespaces and the process that holds them; ``pid`` is process 1 inside, as seen from outside."""

    keeper: subprocess.Popen
    pid: int

    def enter(self, *, whole: bool) -> list[str]:
        """Words before a command that runs it inside: whole, or only in the network."""
        spaces = ["-n", "-m", "-u", "-i", "-p"] if whole else ["-n"]
        return ["nsenter", "-t", str(self.pid), *spaces]


@cache
def why_not() -> str | None:
    """Why hosts cannot be made on this machine; None where they can."""
    if os.geteuid():
        return "needs root to make network namespaces"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "needs iproute2 (ip, tc)"
    script = "ip link add va type veth peer name vb && ip link set va up"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "bash", "-c", script],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    return f"this machine lets no namespaces be made ({done.stderr.strip()})" if done.returncode else None


class Hosts:
    """``num_hosts`` hosts of ``ranks_per_host`` Ray CPUs each, ``rate_mbit`` between any two, each direction.

    ``ray`` False makes the network alone; ``jobs`` starts the job server on the head, at ``job_server``.
    ``rate_mbit`` None leaves the links unshaped.
    """

    def __init__(
        self, num_hosts: int = 3, ranks_per_host: int = 2, rate_mbit: float | None = 200, *, ray: bool = True,
        jobs: bool = False, object_store_bytes: int = 100 * 10**6,
    ) -> None:  # fmt: skip
        self.num_hosts, self.ranks_per_host, self.rate_mbit = num_hosts, ranks_per_host, rate_mbit
        self.address = f"{self.ip(0)}:{PORT}"
        self.job_server = f"http://{self.ip(0)}:8265"
        self._wants_ray, self._wants_jobs, self._store = ray, jobs, object_store_bytes
        self._switch: Space | None = None
        self._hosts: list[Space] = []
        self._started: list[subprocess.Popen] = []
        self._ray: dict[int, subprocess.Popen] = {}
        self.folder = Path()

    def __enter__(self) -> Self:
        _remove_stale(Path(tempfile.gettempdir()))
        self.folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-"))
        try:
            self._build()
            if self._wants_ray:
                self.start_ray(range(self.num_hosts))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            if process.poll() is None:
                _kill_group(process)
        for space in [*self._hosts, *([self._switch] if self._switch else [])]:
            space.keeper.kill()  # process 1 inside dies with it, and with that all others
            space.keeper.wait(timeout=30)
        self._hosts, self._switch, self._started, self._ray = [], None, [], {}
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def ip(host: int) -> str:
        """Address of a host."""
        return f"10.77.0.{10 + host}"

    @property
    def goodput_gb_per_s(self) -> float:
        """Payload bytes that one host's link carries in one direction, GB/s."""
        assert self.rate_mbit is not None
        return self.rate_mbit / 8e3 * GOODPUT

    def run(
        self, host: int, argv: Sequence[str], timeout: float, *, env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Runs a command on a host to its end. Raises subprocess.TimeoutExpired, the command killed."""
        process = self.start(host, argv, env=env, cwd=cwd)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            out, err = process.communicate()
            raise subprocess.TimeoutExpired(list(argv), timeout, out, err) from None
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def start(
        self, host: int, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None,
        log: Path | None = None,
    ) -> subprocess.Popen[str]:  # fmt: skip
        """Starts a command on a host; its output goes to pipes, or to ``log``."""
        inherited = {name: value for name, value in os.environ.items() if name not in DROPPED}
        command = [*self._hosts[host].enter(whole=True), f"--wd={cwd or self.folder}", *argv]
        out = log.open("wb") if log else subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT if log else subprocess.PIPE,
            text=True, env={**inherited, **SETTINGS, **(env or {})}, start_new_session=True,
        )  # fmt: skip
        if log:
            out.close()
        self._started.append(process)
        return process

    @property
    def holders(self) -> list[int]:
        """Process 1 of each host, by the ids that they have here."""
        return [host.pid for host in self._hosts]

    def path(self, host: int, inside: str) -> Path:
        """A path of a host as this process reaches it; each host has a ``/tmp/ray`` of its own."""
        return Path(f"/proc/{self._hosts[host].pid}/root{inside}")

    def pids(self, host: int, word: str) -> list[int]:
        """Processes of a host with ``word`` in their command line, by the ids that they have there."""
        found = []
        for entry in self.path(host, "/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and word in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
        return sorted(found)

    def cut(self, host: int) -> None:
        """Takes the link of a host down at the bridge: packets in flight are lost and nothing says goodbye."""
        self._on_switch("ip", "link", "set", f"p{host}", "down")

    def restore(self, host: int) -> None:
        """Puts the link of a host up again."""
        self._on_switch("ip", "link", "set", f"p{host}", "up")

    def set_rate(self, rate_mbit: float | None) -> None:
        """Shapes every link anew."""
        self.rate_mbit = rate_mbit
        for number, host in enumerate(self._hosts):
            peers = [peer for peer in range(self.num_hosts) if peer != number]
            self._shape(host, "eth0", match="dst", peers=peers)
            self._shape(self._switch, f"p{number}", match="src", peers=peers)

    def drops(self) -> int:
        """Packets that the shaped queues have dropped since they were made."""
        ports = [(host, "eth0") for host in self._hosts]
        ports += [(self._switch, f"p{number}") for number in range(self.num_hosts)]
        lines = [_inside(space, "tc", "-s", "qdisc", "show", "dev", device) for space, device in ports]
        return sum(int(text.split("dropped ")[1].split(",")[0]) for text in lines)

    def start_ray(self, hosts: Sequence[int]) -> None:
        """Starts Ray on these hosts, the head on host 0; returns when all have joined."""
        for host in sorted(hosts):
            self._ray[host] = self._start_ray(host)
            if host == 0:
                self._await_ray(0)
        for host in hosts:
            self._await_ray(host)

    def crash(self, host: int) -> None:
        """Kills all that runs on a host, Ray first; its network stays."""
        _kill_group(self._ray.pop(host))
        _inside(self._hosts[host], "bash", "-c", "kill -KILL -1 || true", whole=True)

    def _build(self) -> None:
        self._switch = self._space("ip link add br0 type bridge; ip link set br0 up", "--net", "--mount")
        for number in range(self.num_hosts):
            script = f"hostname h{number}; mkdir -p {RAY_TMP}; mount -t tmpfs tmpfs {RAY_TMP}"
            kinds = ("--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc")
            host = self._space(script, *kinds)
            self._hosts.append(host)
            peer = ["peer", "name", f"p{number}", "netns", str(self._switch.pid)]
            _inside(host, "ip", "link", "add", "eth0", "type", "veth", *peer)
            _inside(host, "ip", "addr", "add", f"{self.ip(number)}/24", "dev", "eth0")
            _inside(host, "ip", "link", "set", "eth0", "up")
            self._on_switch("ip", "link", "set", f"p{number}", "master", "br0", "up")
        self.set_rate(self.rate_mbit)

    def _space(self, script: str, *kinds: str) -> Space:
        keep = ["setpriv", "--pdeathsig", "KILL", "unshare", *kinds, "--fork", "--kill-child"]
        keeper = subprocess.Popen(
            [*keep, "bash", "-c", f"{NETWORK}{script}\n{STAY}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if keeper.stdout.readline().strip() != "ready":
            raise RuntimeError(f"a host could not be made: {keeper.communicate()[1].strip()}")
        children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text()
        return Space(keeper, int(children))

    def _shape(self, space: Space, device: str, *, match: str, peers: Sequence[int]) -> None:
        """A queue for each peer, their turns equal; together they have the rate of the link."""
        subprocess.run([*space.enter(whole=False), "tc", "qdisc", "del", "dev", device, "root"],
                       stderr=subprocess.DEVNULL, check=False)  # fmt: skip
        if self.rate_mbit is None:
            return
        rate, share = f"{self.rate_mbit:g}mbit", f"{self.rate_mbit / len(peers):g}mbit"
        burst = f"burst {BURST_BYTES} cburst {BURST_BYTES}"
        lines = [
            f"qdisc add dev {device} root handle 1: htb default {10 + peers[0]}",
            f"class add dev {device} parent 1: classid 1:1 htb rate {rate} ceil {rate} {burst}",
        ]
        for peer in peers:
            leaf = f"1:{10 + peer}"
            turn = f"htb rate {share} ceil {rate} {burst} quantum {QUANTUM_BYTES}"
            lines += [
                f"class add dev {device} parent 1:1 classid {leaf} {turn}",
                f"qdisc add dev {device} parent {leaf} bfifo limit {QUEUE_BYTES}",
                f"filter add dev {device} parent 1: protocol ip u32 match ip {match} {self.ip(peer)} flowid {leaf}",
            ]
        _inside(space, "tc", "-batch", "-", given="\n".join(lines))

    def _on_switch(self, *argv: str) -> None:
        _inside(self._switch, *argv)

    def _start_ray(self, host: int) -> subprocess.Popen:
        where = (
            ["--head", f"--port={PORT}", f"--include-dashboard={self._wants_jobs}", f"--dashboard-host={self.ip(0)}"]
            if host == 0
            else [f"--address={self.address}"]
        )
        size = [f"--num-cpus={self.ranks_per_host}", f"--object-store-memory={self._store}"]
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={self.ip(host)}"]
        log = self._log(host)
        return self.start(host, [*ray, *where, *size, "--disable-usage-stats", "--block"], log=log)

    def _await_ray(self, host: int) -> None:
        deadline = time.monotonic() + START_S
        while "Ray runtime started" not in self._log(host).read_text():
            if self._ray[host].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Ray did not start on host {host}: {self._log(host).read_text()[-2000:]}")
            time.sleep(0.2)

    def _log(self, host: int) -> Path:
        return self.folder / f"ray-h{host}.log"


def _inside(space: Space, *argv: str, whole: bool = False, given: str | None = None) -> str:
    done = subprocess.run(
        [*space.enter(whole=whole), *argv], input=given, capture_output=True, text=True, timeout=30, check=False
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def _kill_group(process: subprocess.Popen) -> None:
    """Ends a command that ``Hosts.start`` started: the group is its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)


def _remove_stale(folder: Path) -> None:
    """Removes what makers left behind that were killed."""
    for stale in folder.glob(f"{FOLDER}*-*"):
        pid = stale.name.removeprefix(FOLDER).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(stale, ignore_errors=True)
