"""The network interface over which ranks of several hosts meet."""

import os

import pytest

from workbench.run.context import close_context, interface_of, open_context


def test_the_interface_is_the_one_that_has_the_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None


@pytest.mark.parametrize(("said", "used"), [(None, "lo"), ("chosen0", "chosen0")])
def test_gloo_uses_it_unless_the_environment_says_another(monkeypatch, said, used):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")  # so that what is set below goes back afterwards
    if said is None:
        monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    else:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", said)
    close_context(open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1, address="127.0.0.1"))
    assert os.environ["GLOO_SOCKET_IFNAME"] == used
