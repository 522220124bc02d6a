"""Hardware parts and clusters of them. Bandwidths: GB/s (10^9), one direction, one GPU, unless named otherwise."""

from typing import Literal

from pydantic import Field

from workbench.spec.base import Bytes, Count, Frozen, NonNegative, NonNegativeReal, Positive, Text

PenaltyName = Literal["cross_rail", "small_messages", "incast", "congestion"]


class MeasuredAllToAll(Frozen):
    """A published intra-node NCCL all-to-all fit: time = alpha + bytes / algbw."""

    num_gpus: Count
    alpha_us: Positive
    algbw_gb_per_s: Positive


class ScaleUp(Frozen):
    """The fast domain. On a mesh one pair of GPUs has only ``per_peer_gb_per_s``."""

    gb_per_s: NonNegativeReal
    domain: Count
    topology: Literal["switch", "mesh", "pcie", "memory"]
    per_peer_gb_per_s: Positive | None = None
    latency_us: NonNegativeReal = 2.0


class ScaleOut(Frozen):
    """The network between domains; ``gb_per_s`` is the NIC share of one GPU.

    ``node_gb_per_s`` is what all GPUs of a node share besides: one NIC for all of them, or a limit of the host.
    ``oversubscription`` narrows all traffic between nodes, or with ``leaf_nodes``, the nodes under one leaf switch,
    what goes from leaf to leaf. ``penalties`` are derates that the simulator takes off the rate
    (``workbench.simulate.penalties``).
    """

    gb_per_s: NonNegativeReal
    node_gb_per_s: Positive | None = None
    latency_us: NonNegativeReal = 5.0
    oversubscription: Positive = 1.0
    leaf_nodes: Count | None = None
    penalties: tuple[PenaltyName, ...] = ()


class Hardware(Frozen):
    """One accelerator part (or ``cpu``). TFLOP/s are dense peaks; memory is GB (10^9).

    ``rated_watts`` is the most that the part may draw by itself, without host, switches and cooling.
    """

    name: Text
    vendor: Text
    device: Literal["cuda", "hip", "hpu", "cpu"]
    compute_capability: str | None = None
    bf16_dense_tflops: Positive
    fp8_dense_tflops: Positive | None = None
    fp4_dense_tflops: Positive | None = None
    memory_gb: Positive
    memory_tb_per_s: Positive
    scale_up: ScaleUp
    scale_out: ScaleOut
    pcie_gb_per_s: NonNegativeReal = 0.0
    launch_us: NonNegativeReal = 3.0
    measured_all_to_all: MeasuredAllToAll | None = None
    rated_watts: Positive | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    note: str = ""


class Links(Frozen):
    """Overrides of a part's links in one cluster."""

    scale_up_gb_per_s: Positive | None = None
    scale_up_domain: Count | None = None
    scale_up_latency_us: NonNegativeReal | None = None
    scale_out_gb_per_s: Positive | None = None
    scale_out_node_gb_per_s: Positive | None = None
    scale_out_latency_us: NonNegativeReal | None = None
    oversubscription: Positive | None = None
    leaf_nodes: Count | None = None
    penalties: tuple[PenaltyName, ...] | None = None


class Host(Frozen):
    """What a node offers for offloading."""

    memory_gb: Positive
    memory_gb_per_s: Positive
    nvme_gb_per_s: Positive | None = None


class ClusterRef(Frozen):
    """A cluster as a scenario writes it: ``hardware`` is a catalog name, or a part written out.

    ``base`` names a catalog cluster whose fields hold wherever this one says nothing (see ``over_base``).
    """

    base: Text | None = None
    hardware: Text | Hardware = "cpu"
    nodes: Count = 1
    gpus_per_node: Count = 1
    device: Literal["cpu", "cuda"] | None = None
    memory: Bytes | None = None
    links: Links = Links()
    usd_per_gpu_hour: Positive | None = None
    host: Host | None = None
    name: str = ""
    note: str = ""


def over_base(ref: ClusterRef, base: ClusterRef) -> ClusterRef:
    """``base`` with every field, and every link, that ``ref`` sets put in its place."""
    said = {name: getattr(ref, name) for name in ref.model_fields_set - {"base", "links"}}
    links = base.links.model_copy(update={name: getattr(ref.links, name) for name in ref.links.model_fields_set})
    return base.model_copy(update=said | {"links": links})


class Cluster(Frozen):
    """A planned cluster: links merged into the part, the device decided."""

    name: Text
    hardware: Hardware
    nodes: Count
    gpus_per_node: Count
    device: Literal["cpu", "cuda"]
    memory_bytes: NonNegative
    usd_per_gpu_hour: Positive | None
    host: Host | None

    @property
    def num_gpus(self) -> int:
        return self.nodes * self.gpus_per_node
