"""YAML 1.2 as plain data, with the line of every value."""

import math

import pytest

from simserve.scenario.yaml_lines import NotYaml, read_yaml, scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.5e3", 1500.0),
        ("5E+10", 5e10),
        ("10.0e-6", 1e-5),
        (".5", 0.5),
        ("2.", 2.0),
        ("-3", -3),
        ("+4", 4),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        (".inf", math.inf),
        ("-.Inf", -math.inf),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2024-01-02", "2024-01-02"),
        ("'8'", "8"),
        ('"0.12"', "0.12"),
        ("1e", "1e"),
        ("0b1", "0b1"),
        ("<<", "<<"),
    ],
)
def test_plain_scalars_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    read = scalar(text)
    assert read == value
    assert type(read) is type(value)


def test_nan_is_a_number() -> None:
    assert math.isnan(scalar(".nan"))


def test_every_key_and_item_has_its_line() -> None:
    document = read_yaml("a:\n  b: 1\n  c:\n    - x\n    -\n      d: 2\n")
    assert document.data == {"a": {"b": 1, "c": ["x", {"d": 2}]}}
    lines = {("a",): 1, ("a", "b"): 2, ("a", "c"): 3, ("a", "c", 0): 4, ("a", "c", 1): 6, ("a", "c", 1, "d"): 6}
    assert document.lines == {(): 1, **lines}


def test_a_key_given_twice_is_a_flaw_on_its_second_line() -> None:
    document = read_yaml("a: 1\nb: 2\na: 3\n")
    assert document.data == {"a": 1, "b": 2}
    ((problem, line),) = document.problems
    assert (problem.path, problem.rule, line) == (("a",), "is given twice, first on line 1", 3)


def test_a_tag_is_a_flaw() -> None:
    document = read_yaml("a: !!python/object:os.system x\nb: !!set {}\n")
    assert [line for _, line in document.problems] == [1, 2]
    assert "has no tags such as tag:yaml.org,2002:python/object:os.system" in document.problems[0][0].rule


def test_an_alias_repeats_what_it_names() -> None:
    assert read_yaml("a: &x {b: 1}\nc: *x\n").data == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize(
    ("text", "rule", "line"),
    [
        ("a: [1\nb: 2", "is not YAML", 1),
        ("a: 1\n\tb: 2", "is indented by a tab, which YAML does not allow; use spaces", 2),
        ("a: *nobody", "is not YAML: found undefined alias", 1),
        ("a: 1\n---\nb: 2\n", "is not YAML", 2),
        ("a: &x [*x]", "is not a tree", 1),
        (f"a: {'9' * 5000}", "has a number of 5000 digits", 1),
    ],
)
def test_a_text_that_is_no_tree_of_yaml_says_where(text: str, rule: str, line: int) -> None:
    with pytest.raises(NotYaml) as caught:
        read_yaml(text)
    assert caught.value.rule.startswith(rule)
    assert caught.value.line == line


def test_aliases_that_multiply_are_stopped() -> None:
    layers = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10))
    with pytest.raises(NotYaml, match="at most 100,000 values"):
        read_yaml(f"a0: &a0 [1]\n{layers}\n")


def test_control_characters_are_no_yaml() -> None:
    with pytest.raises(NotYaml, match="is not YAML"):
        read_yaml("a: \x00")


def test_keys_must_be_plain_text() -> None:
    ((problem, line),) = read_yaml("a:\n  ? [1, 2]\n  : 3\n").problems
    assert (problem.path, problem.rule, line) == (("a",), "keys must be plain text", 2)


def test_a_merge_key_is_said_to_be_one() -> None:
    document = read_yaml("base: &b {gpu: x}\n<<: *b\n'<<': 1\n")
    ((problem, line),) = document.problems
    assert line == 2
    assert str(problem) == "<<: merge keys are of YAML 1.1, and are not read; repeat the merged keys here"
    assert document.data == {"base": {"gpu": "x"}, "<<": 1}
