"""The catalog by name, and the references of a scenario resolved into models and clusters."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from workbench.spec.catalog_files import (
    KINDS,
    catalog_dir,
    describe,
    load_cluster_ref,
    load_hardware,
    load_model,
    names,
    reference_dir,
    scenarios_dir,
    suite_path,
)
from workbench.spec.cluster import Cluster, ClusterRef, Hardware, Links, over_base
from workbench.spec.errors import Problem, SpecError, refuse, unknown_name
from workbench.spec.faults import Fault, faults_of
from workbench.spec.model import Model
from workbench.spec.raw import leaves, overlay
from workbench.spec.yaml_source import dotted

__all__ = [
    "KINDS",
    "catalog_dir",
    "describe",
    "load_cluster_ref",
    "load_hardware",
    "load_model",
    "names",
    "reference_dir",
    "resolve_cluster",
    "resolve_model",
    "scenarios_dir",
    "suite_path",
    "whole_cluster_ref",
]

_NOT_MOE = "a mixture-of-experts model needs num_experts and top_k of at least 1; a dense model has no MoE layer"
_LARGEST_CONFIG = 10_000_000


def resolve_model(reference: Any, *, folder: Path | None = None) -> Model:
    """The model of a reference: a catalog name, ``{base: name, ...}``, ``{config: file, ...}``, or all its fields.

    A config file is Hugging Face's config.json, looked for in ``folder`` first. Fields beside ``base`` or ``config``
    replace those of the model; its name then says so unless it is given too.

    Raises SpecError with every fault, paths relative to the reference.
    """
    if isinstance(reference, str):
        return _known("models", reference, "", load_model)
    if not isinstance(reference, Mapping):
        raise refuse("must be a catalog name, or a mapping with base or config", value=reference)
    if "base" in reference and "config" in reference:
        raise refuse("base and config exclude each other; keep one", path="config", value=reference["config"])
    changes = {key: value for key, value in reference.items() if key not in ("base", "config")}
    fields = overlay(_starting_point(reference, folder), changes)
    if changes and "name" not in changes and "name" in fields:
        fields["name"] += "+" + ",".join(f"{dotted(keys)}={value}" for keys, value in leaves(changes).items())
    try:
        return Model.model_validate(fields)
    except ValidationError as error:
        raise SpecError(_model_problem(fault) for fault in faults_of(error, fields, Model)) from None


def _model_problem(fault: Fault) -> Problem:
    dense = fault.path in (("num_experts",), ("top_k",)) and fault.value in (None, 0) and fault.value is not False
    return Problem(None, None, dotted(fault.path), fault.value, _NOT_MOE if dense else fault.message)


def _starting_point(reference: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    if "base" in reference:
        base = reference["base"]
        if not isinstance(base, str):
            raise refuse("base must be a catalog name", path="base", value=base)
        return _known("models", base, "base", load_model).model_dump(exclude_unset=True)
    return _from_config(reference["config"], folder) if "config" in reference else {}


def _from_config(config: Any, folder: Path | None) -> dict[str, Any]:
    from workbench.spec.huggingface import model_from_config

    if not isinstance(config, str) or not config:
        raise refuse("config must be the path of a config.json", path="config", value=config)
    path = find_file(config, folder=folder)
    try:
        if path.stat().st_size > _LARGEST_CONFIG:
            raise refuse("too large to be a config.json", path="config", value=config)
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise refuse(f"cannot be read: {fault.strerror}", path="config", value=config) from None
    except (ValueError, RecursionError) as fault:
        raise fault if isinstance(fault, SpecError) else refuse("is not JSON", path="config", value=config) from None
    if not isinstance(data, dict):
        raise refuse("must hold a JSON object", path="config", value=config)
    name = path.parent.name if path.stem == "config" and path.parent.name else path.stem
    try:
        return model_from_config(data, name).model_dump(exclude_unset=True)
    except SpecError as fault:
        raise SpecError(Problem(path.name, None, p.path, p.value, p.message) for p in fault.problems) from None
    except ValueError as fault:
        raise refuse(str(fault), path="config", value=config) from None


def find_file(path: str, *, folder: Path | None) -> Path:
    """A file that a scenario names: beside the scenario if it is there, else from the working directory."""
    beside = (folder or Path()) / path
    return beside if beside.exists() else Path(path)


def whole_cluster_ref(ref: ClusterRef | str) -> ClusterRef:
    """A reference with the fields of its ``base`` filled in; a text is the name of a catalog cluster.

    Raises SpecError for an unknown cluster, at ``base`` if the reference has one.
    """
    if isinstance(ref, str):
        return _known("clusters", ref, "", load_cluster_ref)
    if ref.base is None:
        return ref
    return over_base(ref, whole_cluster_ref(_known("clusters", ref.base, "base", load_cluster_ref)))


def resolve_cluster(ref: ClusterRef | str) -> Cluster:
    """The planned cluster: base and hardware looked up, links merged into the part, the device decided.

    Raises SpecError with paths relative to the reference.
    """
    whole = whole_cluster_ref(ref)
    part = whole.hardware
    if isinstance(part, str):
        part = _known("hardware", part, "hardware", load_hardware)
    return Cluster(
        name=whole.name or part.name,
        hardware=_with_links(part, whole.links),
        nodes=whole.nodes,
        gpus_per_node=whole.gpus_per_node,
        device=_device(whole, part),
        memory_bytes=whole.memory if whole.memory is not None else round(part.memory_gb * 10**9),
        usd_per_gpu_hour=whole.usd_per_gpu_hour,
        host=whole.host,
    )


def _device(ref: ClusterRef, part: Hardware) -> str:
    own = "cpu" if part.device == "cpu" else "cuda"
    if ref.device not in (None, own):
        raise refuse(
            f"device {ref.device} and hardware {part.name} contradict each other; {part.name} is device {own}",
            path="device",
            value=ref.device,
        )
    return own


def _with_links(part: Hardware, links: Links) -> Hardware:
    up = {
        "gb_per_s": links.scale_up_gb_per_s,
        "domain": links.scale_up_domain,
        "latency_us": links.scale_up_latency_us,
    }
    out = {
        "gb_per_s": links.scale_out_gb_per_s,
        "node_gb_per_s": links.scale_out_node_gb_per_s,
        "latency_us": links.scale_out_latency_us,
        "oversubscription": links.oversubscription,
        "leaf_nodes": links.leaf_nodes,
        "penalties": links.penalties,
    }
    # A measured all-to-all belongs to the links it was measured on.
    measured = part.measured_all_to_all if all(value is None for value in up.values()) else None
    return part.model_copy(
        update={
            "scale_up": part.scale_up.model_copy(update=_given(up)),
            "scale_out": part.scale_out.model_copy(update=_given(out)),
            "measured_all_to_all": measured,
        }
    )


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _known(kind: str, name: str, path: str, load: Any) -> Any:
    if name not in names(kind):
        raise refuse(unknown_name(kind.removesuffix("s"), name, names(kind)), path=path, value=name)
    return load(name)
