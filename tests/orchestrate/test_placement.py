"""What a gang asks for, and the words when it is not there."""

import pytest

from workbench.orchestrate.placement import GangShape, Infeasible, Layout, Node, gpu_hint, lay_out, seat, shape_of


def test_gang_shape_follows_the_measured_ranks(exchange_cells):
    (cell,) = exchange_cells(1, "cluster.nodes=2", "cluster.gpus_per_node=2", "parallel.ep=4")
    assert shape_of(cell) == GangShape(world=4, device="cpu", ranks_per_node=2)
    (within,) = exchange_cells(1, "cluster.nodes=2", "cluster.gpus_per_node=4", "parallel.ep=4")
    assert shape_of(within) == GangShape(world=4, device="cpu", ranks_per_node=4)
    (subset,) = exchange_cells(1, "cluster.gpus_per_node=8", "parallel.ep=8", "parallel.ranks=[0, 5]")
    assert shape_of(subset) == GangShape(world=2, device="cpu", ranks_per_node=2)


def test_nodes_of_the_cluster_are_used_when_there_are_enough():
    shape = GangShape(world=4, device="cuda", ranks_per_node=2)
    nodes = [Node("a", {"GPU": 8}), Node("b", {"GPU": 2}), Node("c", {})]
    layout = lay_out(shape, nodes, slot="CPU")
    assert layout.strategy == "STRICT_SPREAD"
    assert layout.bundles == ({"GPU": 2.0}, {"GPU": 2.0})
    assert layout.bundle_of == (0, 0, 1, 1)


def test_virtual_nodes_share_one_host():
    layout = lay_out(GangShape(world=4, device="cpu", ranks_per_node=2), [Node("a", {"slot": 5})], slot="slot")
    assert (layout.strategy, layout.bundles) == ("STRICT_PACK", ({"slot": 4.0},))


def test_a_last_node_that_is_not_full_asks_for_what_it_holds():
    nodes = [Node("a", {"CPU": 4}), Node("b", {"CPU": 4})]
    layout = lay_out(GangShape(world=3, device="cpu", ranks_per_node=2), nodes, slot="CPU")
    assert layout.bundles == ({"CPU": 2.0}, {"CPU": 1.0})


def test_gpus_spread_over_hosts_are_no_single_node():
    nodes = [Node(name, {"GPU": 1}) for name in "abcd"]
    with pytest.raises(Infeasible) as caught:
        lay_out(GangShape(world=4, device="cuda", ranks_per_node=4), nodes, slot="CPU")
    assert "asked for 4 cuda ranks on one node (4 GPU)" in str(caught.value)
    assert "the cluster has 4 nodes (a: 1 GPU, b: 1 GPU, c: 1 GPU, d: 1 GPU)" in str(caught.value)


@pytest.mark.parametrize(("value", "effect"), [("7", "lists"), ("", "hides"), ("NoDevFiles", "hides")])
def test_w12_hint_names_the_variable_and_its_value(value, effect):
    shape = GangShape(world=1, device="cuda", ranks_per_node=1)
    hint = gpu_hint(shape, {"CUDA_VISIBLE_DEVICES": value})
    assert f"CUDA_VISIBLE_DEVICES={value!r} {effect}" in hint
    assert "unset it" in hint
    assert gpu_hint(shape, {}) == ""
    assert gpu_hint(GangShape(world=1, device="cpu", ranks_per_node=1), {"CUDA_VISIBLE_DEVICES": value}) == ""


def test_virtual_nodes_share_hosts_when_no_host_holds_them_all():
    nodes = [Node(name, {"CPU": 2}) for name in "abc"]
    layout = lay_out(GangShape(world=6, device="cpu", ranks_per_node=1), nodes, slot="CPU")
    assert (layout.strategy, layout.bundle_of) == ("PACK", (0, 1, 2, 3, 4, 5))
    with pytest.raises(Infeasible):  # a node is never torn apart
        lay_out(GangShape(world=6, device="cpu", ranks_per_node=3), nodes, slot="CPU")


def test_ranks_are_seated_node_by_node_in_the_order_of_addresses():
    layout = Layout("STRICT_SPREAD", ({"CPU": 2.0}, {"CPU": 2.0}, {"CPU": 1.0}), (0, 0, 1, 1, 2))
    nodes = [("10.0.0.10", "x"), ("10.0.0.10", "x"), ("10.0.0.9", "y"), ("10.0.0.9", "y"), ("10.0.0.1", "z")]
    assert seat(layout, nodes) == (2, 3, 0, 1, 4)  # the node that is not full comes last


def test_virtual_nodes_of_one_host_are_neighbours():
    layout = Layout("PACK", ({"CPU": 1.0},) * 4, (0, 1, 2, 3))
    nodes = [("10.0.0.2", "b"), ("10.0.0.1", "a"), ("10.0.0.2", "b"), ("10.0.0.1", "a")]
    assert seat(layout, nodes) == (1, 3, 0, 2)
