"""A scenario file as its groups, every value checked, and the way back from a field to its line."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.spec.axes import Report
from workbench.spec.block import Reader
from workbench.spec.catalog import names, suite_path
from workbench.spec.errors import Problem, SpecError, refuse, unknown_name
from workbench.spec.faults import Fault
from workbench.spec.groups import Assigned, Group, join, read_part, survey
from workbench.spec.overrides import SET, Override, over_file, parse_overrides
from workbench.spec.raw import begins
from workbench.spec.yaml_source import Path as YamlPath
from workbench.spec.yaml_source import Source, dotted, load_yaml

_LONGEST_NAME = 300
_LARGEST_FILE = 5_000_000
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class ScenarioFile:
    """A scenario whose every value stands on its own; rules between fields are checked when cells are built."""

    name: str
    file: str
    folder: Path | None
    text: str
    source: Source
    overrides: tuple[Override, ...]
    groups: tuple[Group, ...]

    def problem(self, fault: Fault, group: Group, assigned: Assigned = ()) -> Problem:
        """The problem of a fault in a block of ``group``, at the place in the file where its value was written."""
        if any(begins(fault.path, override.keys) for override in self.overrides):
            return Problem(SET, None, dotted(fault.path), fault.value, fault.message)
        return self.problem_at(self._place(fault.path, group, assigned), fault.value, fault.message)

    def problem_at(self, where: YamlPath, value: Any, message: str) -> Problem:
        """The problem of a value by its place in the file."""
        inner = where[2:] if where[:1] == ("groups",) else where
        for override in self.overrides:
            if override.file_level and begins(inner, override.keys):
                return Problem(SET, None, dotted(inner), value, message)
        return Problem(self.file, self.source.line(where), dotted(where), value, message)

    def _place(self, path: YamlPath, group: Group, assigned: Assigned) -> YamlPath:
        for keys, where in assigned:
            if begins(path, keys):
                return (*where, *path[len(keys) :])
        own = (*group.at, *path)
        return own if self._depth(own) - len(group.at) >= self._depth(path) else path

    def _depth(self, path: YamlPath) -> int:
        while path and path not in self.source.lines:
            path = path[:-1]
        return len(path)


def load_scenario(reference: str | Path, overrides: Iterable[str] = ()) -> ScenarioFile:
    """A scenario by the path of its file or the name of a suite, with ``path=value`` overrides laid over every group.

    Raises SpecError with every fault of the file at once.
    """
    path = _find(str(reference))
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise refuse("too large to be a scenario", file=str(path))
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as fault:
        raise refuse(f"cannot be read: {fault.strerror}", file=str(path)) from None
    except UnicodeDecodeError:
        raise refuse("is not UTF-8 text", file=str(path)) from None
    return parse_scenario(text, file=str(path), folder=path.resolve().parent, overrides=overrides)


def parse_scenario(text: str, *, file: str, folder: Path | None = None, overrides: Iterable[str] = ()) -> ScenarioFile:
    """A scenario from its text; files that it names are looked for in ``folder``, then in the working directory."""
    source = load_yaml(text, file)
    if not isinstance(source.data, Mapping):
        what = "is empty" if source.data is None else "must be a mapping of fields"
        raise refuse(f"a scenario {what}; start with name: and model:", file=file)
    given = parse_overrides(overrides)
    data = over_file(source.data, given)
    report = Report()
    name = _name_of(data, Path(file).stem, report)
    groups = tuple(_groups(data, given, report))
    scenario = ScenarioFile(name, file, folder, text, source, given, groups)
    problems = [scenario.problem_at(*found) for found in report.found]
    checked = []
    reader = Reader(folder)
    for group in groups:
        boxes, faults = survey(group, reader)
        problems += [scenario.problem(fault, group, assigned) for fault, assigned in faults]
        checked.append(replace(group, boxes=tuple(boxes)))
    if problems:
        once = {str(problem): problem for problem in problems}
        raise SpecError(sorted(once.values(), key=lambda problem: problem.line or 0))
    return replace(scenario, groups=tuple(checked))


def _groups(data: Mapping[str, Any], overrides: tuple[Override, ...], report: Report) -> Iterable[Group]:
    shared = read_part(data, (), report)
    if "groups" not in data:
        yield join("", (), [shared], overrides, report)
        return
    listed = data["groups"]
    if not isinstance(listed, list) or not listed:
        report.add(("groups",), listed, "must be a list of blocks")
        return
    taken: set[str] = set()
    for number, group in enumerate(listed):
        at = ("groups", number)
        if not isinstance(group, Mapping):
            report.add(at, group, "must be a mapping of fields")
            continue
        name = group.get("name", str(number + 1))
        if not isinstance(name, str) or not name or name in taken:
            report.add((*at, "name"), name, "must be a text that no other group has")
            name = str(number + 1)
        taken.add(name)
        yield join(name, at, [shared, read_part(group, at, report)], overrides, report)


def _name_of(data: Mapping[str, Any], stem: str, report: Report) -> str:
    """Any line of text: the results keep it as it is, and its run lies under a safe form of it."""
    name = data.get("name", _readable(stem))
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        where = ("name",) if "name" in data else ()
        report.add(where, name, f"a scenario's name is one line of text of up to {_LONGEST_NAME} characters")
    return str(name)


def _readable(stem: str) -> str:
    """A file's name as text, also where an ASCII locale hid its bytes in surrogates."""
    return stem.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _find(reference: str) -> Path:
    looks_like_path = reference.endswith(_SUFFIXES) or "/" in reference or "\\" in reference
    if looks_like_path or (reference not in names("suites") and Path(reference).exists()):
        return Path(reference)
    if reference in names("suites"):
        return suite_path(reference)
    raise refuse(unknown_name("file or suite", reference, names("suites")), value=reference)
