"""How many expert-parallel ranks a node holds. A node here is a scale-up domain: ranks that reach each other fast."""

from workbench.spec.scenario import Cell

_LARGEST_BOX = 16  # a scale-up domain above this is a rack: it joins the boxes of a cluster


def ranks_per_node(cell: Cell) -> int:
    """Tensor-parallel peers sit together, so a node holds GPUs / tp ranks, at most the whole EP group.

    Rack-scale domains (NVL72) span the boxes of ``cluster.nodes``.
    """
    gpus, domain = cell.cluster.gpus_per_node, cell.cluster.hardware.scale_up.domain
    if gpus < domain and domain > _LARGEST_BOX and cell.cluster.device != "cpu":
        gpus = domain
    return min(cell.ep, max(1, gpus // cell.parallel.tp))
