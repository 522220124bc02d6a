"""Hosts of this machine's own making; their tests skip only where the machine lets no namespaces be made."""

import pytest

from tests.cluster.hosts import Hosts, why_not


@pytest.fixture(scope="session")
def namespaces():
    """Skips what needs hosts where there can be none, with the reason."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def links(namespaces):
    """Three hosts joined at 200 Mbit/s, without Ray."""
    with Hosts(ray=False) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def cluster(namespaces):
    """Three hosts of two ranks joined at 200 Mbit/s, a Ray cluster over them whose head takes jobs."""
    with Hosts(jobs=True) as hosts:
        yield hosts
