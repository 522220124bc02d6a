"""Joining a Ray cluster: whether it answers, in which versions, and what to do when it does not fit."""

import json
import os
import re
import socket
import subprocess
import sys

from workbench.spec.found import FoundCluster

ANSWER_S = 12.0
_PROBE = """
import json, sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="critical", configure_logging=True)
except BaseException as error:
    while error.__cause__ is not None:
        error = error.__cause__
    print(f"{type(error).__name__}: {error}")
    sys.exit(3)
print(json.dumps([node["Resources"] for node in ray.nodes() if node["Alive"]]))
"""
_VERSIONS = re.compile(r"Ray:\s*(\S+)\s+Python:\s*(\S+)")


class SessionError(ValueError):
    """Ray could not be started or joined; the text is one line for the user."""


def check_address(address: str) -> FoundCluster:
    """What the Ray cluster at ``host:port`` has.

    Raises SessionError within 15 s when none that fits this process answers.

    Ray's own connection waits two minutes for a silent address and then ends the process, so a child process with
    a time limit asks first.
    """
    _reach(address)
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE, address], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        reason = f"no Ray head answered within {ANSWER_S:.0f} s; the port is open but it is not Ray's (6379 if unset)"
        raise SessionError(f"--address {address}: {reason}") from None
    if probe.returncode:
        raise SessionError(explain_join(address, probe.stdout.strip() or probe.stderr.strip()))
    nodes = json.loads(probe.stdout.splitlines()[-1])
    return FoundCluster(cpu=_amounts(nodes, "CPU"), cuda=_amounts(nodes, "GPU"))


def _amounts(nodes: list[dict[str, float]], resource: str) -> tuple[int, ...]:
    return tuple(int(node[resource]) for node in nodes if node.get(resource, 0) >= 1)


def explain_join(address: str, text: str) -> str:
    """One line that says why Ray refused to join and what mends it."""
    versions = _VERSIONS.findall(text)
    if len(versions) == 2:
        (their_ray, their_python), (our_ray, our_python) = versions
        mend = f"install ray=={their_ray} under Python {their_python} here, or start the cluster with this environment"
        return (
            f"--address {address}: the cluster runs Ray {their_ray} on Python {their_python}, "
            f"this process Ray {our_ray} on Python {our_python}; {mend}"
        )
    if re.search("auth|token", text, re.IGNORECASE):
        mode = os.environ.get("RAY_AUTH_MODE", "token")
        mend = "give RAY_AUTH_TOKEN (or ~/.ray/auth_token) of that cluster, or RAY_AUTH_MODE=disabled if it has none"
        return f"--address {address}: Ray's authentication failed with RAY_AUTH_MODE={mode}; {mend}"
    return f"--address {address}: Ray could not join: {text.splitlines()[0] if text else 'it gave no reason'}"


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise SessionError(f"--address {address}: give the head's host:port, for example 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=3.0).close()
    except (OSError, OverflowError) as error:
        mend = "start a cluster there (ray start --head), or leave --address out to run on this machine"
        raise SessionError(f"--address {address}: nothing listens there ({error}); {mend}") from error
