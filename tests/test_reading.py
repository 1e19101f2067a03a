"""YAML and JSON of others: what is read, and what is refused and why."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from llmscale_env._cli import number, one_line, whole_numbers
from llmscale_env._reading import Unreadable, parse_json, parse_yaml, read_json, read_yaml
from tests.bad_input import BOMB, CHAIN, DEEP

ROOT = Path(__file__).resolve().parents[1]


def test_all_that_ships_is_read_as_before():
    paths = [
        path
        for package in ("llmscale_env", "agents", "baselines", "experiments")
        for path in (ROOT / package).rglob("*.yaml")
    ]
    assert len(paths) > 50
    for path in paths:
        assert read_yaml(path) == yaml.safe_load(path.read_text(encoding="utf-8")), path


def test_aliases_and_merges_are_read():
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]"
    assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    "text, said",
    [
        ("[" * DEEP, "nested more than 100 deep"),
        ("{a: " * DEEP, "nested more than 100 deep"),
        (BOMB, "its aliases make more than 200,000 values of it"),
        (CHAIN, "100 levels"),
        ("&a [*a]", "an alias stands for what it is a part of"),
        ("a: &a {<<: *a}", "an alias stands for what it is a part of"),
        ("a: 1\nb: 2\na: 3", "line 3: 'a' is given twice"),
        ("x" * 600_000, "longer than 500,000 characters"),
        ("a: [", "not valid YAML: while parsing"),
        ("!!int ''", "not valid YAML"),
        ("!!timestamp x", "not valid YAML"),
        ("2020-13-45", "not valid YAML: month must be in 1..12"),
        ("9" * 5000, "not valid YAML"),
        ("{[a]: b}", "not valid YAML"),
        ("a\0b", "not valid YAML"),
    ],
)
def test_what_yaml_is_refused(text: str, said: str):
    with pytest.raises(Unreadable) as error:
        parse_yaml(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text, said",
    [
        ("[" * DEEP, "nested too deep"),
        ('{"a": NaN}', "NaN is no number of JSON"),
        ("9" * 5000, "not JSON: Exceeds the limit"),
        ('{"a":\n', "line 2: not JSON"),
    ],
)
def test_what_json_is_refused(text: str, said: str):
    with pytest.raises(Unreadable, match=said):
        parse_json(text)


@pytest.mark.parametrize("read", [read_yaml, read_json])
def test_what_is_no_file_is_not_waited_for(read, tmp_path: Path):
    with pytest.raises(Unreadable, match="is no file that can be read"):
        read(Path("/dev/zero"))
    with pytest.raises(Unreadable, match=r"cannot be read \(No such file"):
        read(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"a: \xff")
    with pytest.raises(Unreadable, match="byte 3 is no text in UTF-8"):
        read(tmp_path / "bytes")


def test_a_line_is_one_line():
    assert one_line("a\n  b\x1b[31m\r\nc\u2028d") == r"a b\x1b[31m c d"
    assert len(one_line("x" * 10**6 + " must be less")) < 2100
    assert one_line("x" * 10**6 + " must be less").endswith(" must be less")


def test_numbers_of_the_command_line():
    assert number({"a": "1e-3"}, "a", 2.0, 0.0, 1.0) == 1e-3
    assert number({}, "a", 2.0, 0.0, 1.0 + 1) == 2.0
    for text in ("nan", "inf", "0", "x", ""):
        with pytest.raises(ValueError, match="must be a number above 0 and at most 1"):
            number({"a": text}, "a", 1.0, 0.0, 1.0, above=True)
    assert whole_numbers({"a": "3,1"}, "a", (), 1, 3) == [3, 1]
    with pytest.raises(ValueError, match=r"a = '3,x': must be integers in 1\.\.3"):
        whole_numbers({"a": "3,x"}, "a", (), 1, 3)
