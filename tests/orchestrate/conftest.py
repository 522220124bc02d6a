"""A real Ray session shared by a module's tests, and small cells that really exchange bytes."""

import pytest

from workbench.orchestrate.session import open_session
from workbench.plan import plan_cells
from workbench.spec.scenario_file import parse_scenario

EXCHANGE = """
name: exchange
scope: {kind: all_to_all, bytes_per_rank: 4KiB}
cluster: {hardware: cpu, nodes: 1, gpus_per_node: 2}
parallel: {ep: 2}
engine: measure
measure: {warmup: 1, min_samples: 5, max_seconds: 0.1}
"""
PRICED = """
name: priced
model: deepseek-v3
cluster: {hardware: h200-sxm, nodes: 1, gpus_per_node: 8}
workload: {tokens_per_rank: 4}
engine: simulate
"""


@pytest.fixture(scope="module")
def session():
    """A local session whose object store holds 100 MB."""
    with open_session(object_store_memory=100 * 10**6) as opened:
        yield opened


@pytest.fixture(scope="session")
def make_cells():
    """``make_cells(text, "path=value", ...)``: the planned cells of a scenario."""

    def make(text, *overrides):
        return list(plan_cells(parse_scenario(text, file="test.yaml", overrides=overrides)))

    return make


@pytest.fixture(scope="session")
def exchange_cells(make_cells):
    """``exchange_cells(n, "path=value", ...)``: n measured all-to-alls that differ in their seed."""

    def make(number, *overrides):
        return make_cells(f"{EXCHANGE}matrix: {{workload.seed: {list(range(number))}}}\n", *overrides)

    return make


@pytest.fixture(scope="session")
def priced_cells(make_cells):
    """``priced_cells(n, "path=value", ...)``: n simulated layers that differ in their seed."""

    def make(number, *overrides):
        return make_cells(f"{PRICED}matrix: {{workload.seed: {list(range(number))}}}\n", *overrides)

    return make
