"""Reading YAML: what is a number, what is refused, and where everything stands."""

import pytest

from workbench.spec.errors import SpecError
from workbench.spec.yaml_source import load_yaml, plain_scalar


def problems_of(text):
    with pytest.raises(SpecError) as refusal:
        load_yaml(text, "file.yaml")
    return refusal.value.problems


def test_y01_exponents_are_numbers():
    data = load_yaml("tokens: 1e5\neps: 1e-6\nbw: 2.5e3\nx: 1.0e+5\nquoted: '1e5'\n", "file.yaml").data
    assert data == {"tokens": 100000, "eps": 1e-6, "bw": 2500, "x": 100000, "quoted": "1e5"}
    assert [type(data[key]) for key in ("tokens", "eps", "bw", "x")] == [int, float, int, int]


@pytest.mark.parametrize("word", ["no", "off", "on", "yes", "No", "OFF"])
def test_y03_old_booleans_need_quotes(word):
    (problem,) = problems_of(f"name: {word}\n")
    assert (problem.line, problem.path, problem.value) == (1, "name", word)
    assert f'"{word}"' in problem.message
    assert load_yaml(f'name: "{word}"\n', "f").data == {"name": word}


def test_y03_only_true_and_false_are_booleans():
    assert load_yaml("a: true\nb: false\nc: y\nd: n\n", "f").data == {"a": True, "b": False, "c": "y", "d": "n"}


def test_y04_repeated_key_names_both_lines():
    (problem,) = problems_of("model:\n  top_k: 2\n  hidden: 8\n  top_k: 8\n")
    assert problem.path == "model.top_k"
    assert problem.line == 4
    assert "line 2" in problem.message
    assert "line 4" in problem.message


def test_y15_tab_is_one_message_with_its_place():
    (problem,) = problems_of("model:\n\thidden: 8\n\ttop_k: 2\n")[:1]
    assert str(problem).startswith("file.yaml:2:1: tabs are not allowed")
    inside = problems_of("model:\n  a: 1\n  \tb: 2\n")
    assert [(problem.line, problem.column) for problem in inside] == [(3, 3)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("-3", -3),
        ("0x10", 16),
        ("0o17", 15),
        ("010", 10),
        ("2.0", 2.0),
        (".5", 0.5),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("~", None),
        ("", None),
        (".inf", float("inf")),
        ("-.inf", float("-inf")),
        ("1e400", float("inf")),
        ("1e-400", 0.0),
        ("e5", "e5"),
        ("1e", "1e"),
    ],
)
def test_scalars(text, value):
    read = plain_scalar(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "a: [1,",
        "a: b: c",
        'a: "unclosed',
        "a: *nowhere",
        "&a [*a]",
        "a: !!python/object/apply:os.system ['true']",
        "a: !custom 1",
        "a: 1\n---\nb: 2",
        "? [a]\n: b",
        "a: \x01",
        "%!",
        "[" * 5000 + "]" * 5000,
    ],
)
def test_bad_yaml_is_one_problem(text):
    (problem,) = problems_of(text)
    assert problem.file == "file.yaml"
    assert "\n" not in str(problem)


def test_alias_bomb_is_refused_at_once():
    rows = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    rows += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    (problem,) = problems_of("\n".join(rows))
    assert "too large" in problem.message


def test_lines_of_keys_and_items():
    source = load_yaml("a: 1\nb:\n  c:\n  - x\n  - y: 2\n", "f")
    assert source.lines[("b", "c")] == 3
    assert source.lines[("b", "c", 1, "y")] == 5
    assert source.line(("b", "c", 1, "absent")) == 5
    assert source.line(("absent",)) == 1


def test_every_fault_of_a_text_at_once():
    assert len(problems_of("a: no\nb: off\nc: 1\nc: 2\n")) == 3
