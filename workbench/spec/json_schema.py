"""JSON schema of a scenario file, for editors and other programs.

It accepts every file that the workbench accepts; rules between fields, and what a kind needs where another part of
the file may give it, are left to ``plan``.
"""

from collections.abc import Mapping
from typing import Any, get_args

from workbench.spec.base import SIZE_UNITS
from workbench.spec.catalog import names
from workbench.spec.dispatch import Placement
from workbench.spec.model import Model
from workbench.spec.names import block_paths
from workbench.spec.precision import PRECISIONS
from workbench.spec.raw import keys_of
from workbench.spec.scenario import Block

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIZE_TEXT = {"type": "string", "pattern": rf"^\s*[0-9]+(\.[0-9]+)?\s*({'|'.join(SIZE_UNITS)})\s*$"}
_DEFS = "#/$defs/"
_CATALOG = {"cluster": "clusters", "base": "clusters", "hardware": "hardware"}


def scenario_schema() -> dict[str, Any]:
    """The schema of a scenario as a user writes it: short forms, groups, matrix, zip, exclude and include."""
    block = Block.model_json_schema(ref_template=_DEFS + "{model}")
    model = Model.model_json_schema(ref_template=_DEFS + "{model}")
    defs = _relaxed({**block.pop("$defs"), **model.pop("$defs"), "Model": model})
    defs["Model"]["properties"] |= {"base": _names("models"), "config": {"type": "string", "minLength": 1}}
    fields = _relaxed(block["properties"]) | {"model": _either(_names("models"), {"$ref": _DEFS + "Model"})}
    fields |= {"name": {"type": "string"}} | _varying(fields, defs)
    group = {"type": "object", "properties": fields, "additionalProperties": False}
    groups = {"type": "array", "minItems": 1, "items": {"$ref": _DEFS + "Group"}}
    return {
        "$schema": DIALECT,
        "title": "MoE workbench scenario",
        "type": "object",
        "properties": fields | {"groups": groups},
        "additionalProperties": False,
        "$defs": defs | {"Group": group},
    }


def _varying(fields: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """matrix and zip hold lists, exclude and include mappings, all by dotted path."""
    typed = {path: _at(path, fields, defs) for path in sorted(block_paths())}
    free = {"^goal\\.space\\.": {}, "^model\\.sources\\.": {}}
    lists = {
        "type": "object",
        "properties": {path: {"type": "array", "minItems": 1, "items": schema} for path, schema in typed.items()},
        "patternProperties": {pattern: {"type": "array", "minItems": 1} for pattern in free},
        "additionalProperties": False,
    }
    entry = {"type": "object", "minProperties": 1, "properties": typed, "patternProperties": free}
    entries = {"type": "array", "items": entry | {"additionalProperties": False}}
    return {"matrix": lists, "zip": lists, "exclude": entries, "include": entries}


def _at(path: str, fields: Mapping[str, Any], defs: Mapping[str, Any]) -> Any:
    """The schema at a dotted path; anything where a choice of kinds lies on the way."""
    properties, schema = fields, {}
    for key in keys_of(path):
        if key not in properties:
            return {}
        schema = properties[key]
        targets = [branch["$ref"] for branch in (schema, *schema.get("anyOf", ())) if "$ref" in branch]
        properties = defs[targets[0].removeprefix(_DEFS)].get("properties", {}) if len(targets) == 1 else {}
    return {name: value for name, value in schema.items() if name != "default"}


def _relaxed(node: Any, key: str = "") -> Any:
    """Pydantic's schema with short forms added, and without ``required``, which another part of the file may meet."""
    if isinstance(node, list):
        return [_relaxed(item, key) for item in node]
    if not isinstance(node, Mapping):
        return node
    if "discriminator" in node:
        kinds = sorted(node["discriminator"]["mapping"])
        rest = {name: value for name, value in node.items() if name not in ("discriminator", "oneOf")}
        return rest | _either({"type": "string", "enum": kinds}, *node["oneOf"])
    if node.get("$ref") in (_DEFS + "Precision", _DEFS + "Placement"):
        return _short_form(node)
    if node.get("type") == "integer" and "ge" in node:
        return _either({"type": "integer", "minimum": node["ge"]}, _SIZE_TEXT)
    relaxed = {name: _relaxed(value, name) for name, value in node.items() if name != "required"}
    if key in _CATALOG and "anyOf" in relaxed:
        relaxed["anyOf"] = [_names(_CATALOG[key]) if _is_text(item) else item for item in relaxed["anyOf"]]
    return relaxed


def _short_form(node: Mapping[str, Any]) -> dict[str, Any]:
    if node["$ref"].endswith("Precision"):
        return _either({"type": "string", "enum": sorted(PRECISIONS)}, {"$ref": node["$ref"]})
    kinds = get_args(Placement.model_fields["kind"].annotation)
    return _either({"type": "string", "enum": list(kinds)}, {"$ref": node["$ref"]})


def _is_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string"


def _names(kind: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names(kind))}


def _either(*schemas: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [dict(schema) for schema in schemas]}
