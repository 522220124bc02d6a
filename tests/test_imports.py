"""The rooms may import only what the layout of the project allows; read from the source, not from what runs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ROOMS = {
    "workbench.doctor": {"workbench.orchestrate", "workbench.measure", "kernels"},
    "workbench.orchestrate": {"workbench.run", "workbench.store", "workbench.plan"},
    "workbench.search": {"workbench.simulate", "workbench.analysis", "workbench.plan"},
    "workbench.report": {"workbench.analysis", "workbench.store"},
    "workbench.analysis": {"workbench.store"},
    "workbench.store": set(),
    "workbench.run": {
        "workbench.measure",
        "workbench.simulate",
        "workbench.comm",
        "workbench.balance",
        "workbench.workload",
        "kernels",
    },
    "workbench.measure": set(),
    "workbench.simulate": {"workbench.comm", "workbench.balance", "workbench.workload"},
    "workbench.comm": {"workbench.balance", "workbench.workload", "kernels.formats"},
    "workbench.balance": {"workbench.workload"},
    "workbench.workload": {"kernels.routing"},
    "workbench.plan": set(),
    "workbench.spec": set(),
    "kernels": set(),
    "dashboard": {"workbench.report", "workbench.analysis", "workbench.store"},
}
ROOMS["workbench.cli"] = set(ROOMS) - {"dashboard"}
FOR_ALL = {"workbench.spec", "workbench.__version__"}
"""What every room but kernels may import."""
OUTSIDERS = {"ray": {"workbench.orchestrate"}}
"""Outside packages that only some rooms may import."""
BANNED = {"workbench.spec": {"torch"}, "dashboard": {"torch", "ray", "kernels"}}
ONLY_OUTSIDERS = {"kernels": {"torch", "triton"}}
"""Rooms that import nothing from outside but these and the standard library."""


def imported_names(path: Path, module: str) -> list[tuple[int, str]]:
    """Line and dotted name of everything a file imports, also inside functions and by import_module("name")."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            package = base if path.name == "__init__.py" else base[:-1]
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{source}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                found.append((node.lineno, node.args[0].value))
    return found


def room_of(name: str) -> str | None:
    """The room a dotted name lies in; None for what is not of this project."""
    if name == "workbench" or name.startswith("workbench."):
        return ".".join(name.split(".")[:2])
    top = name.split(".")[0]
    return top if top in ("kernels", "dashboard") else None


def is_allowed(room: str, name: str) -> bool:
    target = room_of(name)
    if target is not None:
        allowed = ROOMS[room] | {room} | (set() if room == "kernels" else FOR_ALL)
        return any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed)
    package = name.split(".")[0]
    if room in ONLY_OUTSIDERS:
        return package in ONLY_OUTSIDERS[room] or package in sys.stdlib_module_names
    return room in OUTSIDERS.get(package, {room}) and package not in BANNED.get(room, ())


def breaches(root: Path) -> list[str]:
    """Every import of a tree that the table does not allow, and every file that lies in no room."""
    wrong = []
    for path in sorted(file for top in ("workbench", "kernels", "dashboard") for file in (root / top).rglob("*.py")):
        relative = path.relative_to(root)
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        if module in ("workbench", "dashboard"):
            continue
        room = room_of(module)
        if room not in ROOMS:
            wrong.append(f"{relative}: lies in no room")
            continue
        for line, name in imported_names(path, module):
            if not is_allowed(room, name):
                wrong.append(f"{relative}:{line}: {room} may not import {name}")
    return wrong


def test_every_import_is_allowed():
    assert breaches(ROOT) == []


def test_kernels_folder_is_a_namespace():
    assert not (ROOT / "kernels" / "__init__.py").exists(), "Hugging Face's package of that name must coexist"


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("workbench/store/a.py", "import ray"),
        ("workbench/store/a.py", "def f():\n    from ray.util import queue"),
        ("workbench/run/a.py", "from workbench.orchestrate import execute"),
        ("workbench/run/a.py", "from workbench import store"),
        ("workbench/run/a.py", "from ..store import writer"),
        ("workbench/comm/a.py", "from kernels.routing import route"),
        ("workbench/comm/a.py", "import kernels"),
        ("workbench/workload/a.py", "import kernels.formats"),
        ("workbench/spec/a.py", "import torch"),
        ("workbench/spec/a.py", "from workbench.plan import plan_cells"),
        ("workbench/plan.py", "import workbench.store"),
        ("workbench/measure/a.py", "from importlib import import_module\nimport_module('workbench.run')"),
        ("workbench/cli/a.py", "import dashboard.app"),
        ("workbench/new_room/a.py", "x = 1"),
        ("kernels/a.py", "from workbench.spec import base"),
        ("kernels/a.py", "import numpy"),
        ("kernels/formats/a.py", "import workbench"),
        ("dashboard/pages/a.py", "import torch"),
        ("dashboard/app.py", "from workbench.run import simulated"),
        ("dashboard/app.py", "from kernels import formats"),
    ],
)
def test_a_breach_is_found(tmp_path, file, code):
    for name in ("workbench", "kernels", "dashboard"):
        (tmp_path / name).mkdir()
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    assert len(breaches(tmp_path)) == 1


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("workbench/orchestrate/a.py", "import ray"),
        ("workbench/comm/a.py", "from kernels.formats.base import Quantised\nfrom workbench.balance import placement"),
        ("workbench/cli/a.py", "from workbench import __version__\nimport workbench.search.best, kernels.moe"),
        ("workbench/spec/a.py", "from workbench.spec.base import Frozen\nfrom . import base"),
        ("workbench/store/a.py", "from workbench.spec import record\nimport pandas"),
        (
            "kernels/formats/a.py",
            "import torch\nfrom kernels.formats import base\nimport triton.language as tl\nimport math",
        ),
    ],
)
def test_an_allowed_import_passes(tmp_path, file, code):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert breaches(tmp_path) == []


def test_light_rooms_load_neither_torch_nor_ray():
    """What the dashboard stands on stays light also through what it imports in turn."""
    rooms = ("spec", "store", "analysis", "report")
    files = [path for room in rooms for path in sorted((ROOT / "workbench" / room).rglob("*.py"))]
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    code = (
        "import sys\nfrom importlib import import_module\n"
        f"for name in {[*modules, 'workbench.plan']!r}: import_module(name)\n"
        "print([name for name in ('torch', 'ray', 'kernels', 'triton') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
