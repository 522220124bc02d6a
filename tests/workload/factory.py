"""Small planned cells, built straight from the schema."""

from typing import Any

from workbench.spec.cluster import Cluster, Hardware, ScaleOut, ScaleUp
from workbench.spec.dispatch import Balance, Dispatch, Parallel, Placement
from workbench.spec.model import Model
from workbench.spec.precision import PRECISIONS
from workbench.spec.scenario import Cell
from workbench.spec.workload import Workload

GROUPED = {"kind": "sigmoid_group", "num_groups": 8, "topk_group": 4}


def make_cell(
    *, ranks: int = 4, tokens: int = 32, experts: int = 64, top_k: int = 4, hidden: int = 256, seed: int = 0,
    skew: Any = "uniform", router: Any = "softmax_topk", data: Any = "gaussian", gpus_per_node: int = 2, tp: int = 1,
    domain: int = 8, device: str = "cpu", redundant: int = 0, **fields: Any,
) -> Cell:  # fmt: skip
    hardware = Hardware(
        name="part", vendor="any", device=device, bf16_dense_tflops=1.0, memory_gb=1.0, memory_tb_per_s=1.0,
        scale_up=ScaleUp(gb_per_s=10.0, domain=domain, topology="switch"), scale_out=ScaleOut(gb_per_s=1.0),
    )  # fmt: skip
    cluster = Cluster(
        name="part", hardware=hardware, nodes=-(-ranks * tp // gpus_per_node), gpus_per_node=gpus_per_node,
        device=device, memory_bytes=10**9, usd_per_gpu_hour=None, host=None,
    )  # fmt: skip
    model = Model(
        name="small", total_layers=1, moe_layers=1, hidden=hidden, moe_intermediate=64, num_experts=experts,
        top_k=top_k, router=router,
    )  # fmt: skip
    common = {
        "cell_id": "cell", "scenario": "test", "group": "", "model": model, "cluster": cluster, "trace_digest": None,
        "parallel": Parallel(ep=ranks, tp=tp), "precision": PRECISIONS["bf16"], "dispatch": Dispatch(),
        "workload": Workload(tokens_per_rank=tokens, skew=skew, data=data, seed=seed),
        "balance": Balance(placement=Placement(redundant_experts=redundant)),
    }  # fmt: skip
    return Cell(**common | fields)
