"""The topology of a cluster at hand, and what a scenario says instead."""

import pytest

from workbench.plan import plan_cells
from workbench.spec.errors import SpecError
from workbench.spec.found import AsAsked, FoundCluster
from workbench.spec.scenario_file import parse_scenario

TEXT = "name: found\nscope: {kind: all_to_all, bytes_per_rank: 4KiB}\nengine: measure\n"
HOSTS = FoundCluster(cpu=(2, 2, 2), cuda=(8, 4, 8))


def planned(more="", *, found=HOSTS):
    (cell,) = plan_cells(parse_scenario(TEXT + more, file="t.yaml"), found=found)
    return cell.cluster.nodes, cell.cluster.gpus_per_node, cell.ep


@pytest.mark.parametrize(
    ("more", "shape"),
    [
        ("", (3, 2, 6)),
        ("parallel: {ep: 4}\n", (2, 2, 4)),
        ("parallel: {ep: 3}\n", (2, 2, 3)),
        ("cluster: {nodes: 2}\n", (2, 2, 4)),
        ("cluster: {gpus_per_node: 1}\n", (3, 1, 3)),
        ("cluster: {nodes: 6, gpus_per_node: 1}\n", (6, 1, 6)),
        ("cluster: {base: this-machine}\n", (2, 2, 4)),
        ("cluster: this-machine\n", (2, 2, 4)),
        ("cluster: {hardware: h200-sxm}\n", (2, 8, 16)),
        ("cluster: {hardware: h200-sxm}\nparallel: {tp: 2}\n", (2, 8, 8)),
    ],
)
def test_topology_is_found_where_the_scenario_leaves_it_out(more, shape):
    assert planned(more) == shape


def test_only_what_is_measured_here_is_found():
    text = "name: priced\nmodel: deepseek-v3\ncluster: {hardware: h200-sxm}\nparallel: {ep: 1}\n"
    (cell,) = plan_cells(parse_scenario(text, file="t.yaml"), found=HOSTS)
    assert (cell.engine, cell.cluster.nodes, cell.cluster.gpus_per_node) == ("simulate", 1, 1)


def test_more_ranks_than_were_found_are_refused_with_what_there_is():
    with pytest.raises(SpecError, match=r"ep 8 .* the cluster has 6 \(nodes 3 \* gpus_per_node 2\)"):
        planned("parallel: {ep: 8}\n")


def test_a_cluster_without_the_device_changes_nothing():
    assert planned("cluster: {hardware: h200-sxm}\n", found=FoundCluster(cpu=(2, 2))) == (1, 1, 1)


def test_nodes_of_unlike_size_give_the_shape_that_uses_most():
    assert FoundCluster(cpu=(4, 4, 1)).shape("cpu") == (2, 4)
    assert FoundCluster(cpu=(4, 3, 3)).shape("cpu") == (3, 3)
    assert FoundCluster(cpu=(4, 3, 3)).shape("cpu", nodes=4) is None


def test_a_cluster_not_seen_yet_is_taken_to_hold_what_is_asked():
    assert planned("parallel: {ep: 8}\n", found=AsAsked()) == (1, 8, 8)
    assert planned("cluster: {gpus_per_node: 2}\nparallel: {ep: 8}\n", found=AsAsked()) == (4, 2, 8)
