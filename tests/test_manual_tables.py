"""Tables of the environments' pages: alike rows share one, and nothing is lost by that."""

from __future__ import annotations

from importlib import import_module

import pytest

import llmscale_env
from experiments.manual_tables import choices, entries, folded, placeholders, shown
from llmscale_env.envs import MultiRegionEnv

WORDS = {("a", "b"): "POOL", ("x", "y", "z"): "CLASS"}


@pytest.mark.parametrize("entry", llmscale_env.ENVIRONMENTS, ids=lambda entry: entry.short_name)
def test_every_entry_and_every_part_is_in_one_row(entry):
    module, _, name = entry.entry_point.partition(":")
    env = getattr(import_module(module), name)()
    for names in (env.observation_names, env.action_names):
        rows, _ = folded([(each, "") for each in names], placeholders(env.scenario))
        assert sorted(k for row in rows for k in row.numbers) == list(range(len(names)))


def test_place_holders_are_explained_once():
    env = MultiRegionEnv()
    said = choices(env, "")
    assert "`POOL`: " in said
    assert "`LLM`: " not in said
    assert "`POOL`: " in entries(env)
    assert "`POOL`: " not in entries(env, said)
    assert "`LLM`: " in entries(env, said)


def test_names_that_differ_in_a_pool_share_a_row():
    parts = [(f"{pool}/{what}", what) for pool in ("a", "b") for what in ("active", "kv")]
    rows, used = folded(parts, WORDS)
    assert [(row.numbers, row.name) for row in rows] == [
        ((0, 2), "POOL/active"),
        ((1, 3), "POOL/kv"),
    ]
    assert used == {"POOL": ("a", "b")}


def test_several_words_in_a_name_go_in_order():
    parts = [(f"{pool}/{c}", "load") for pool in ("a", "b") for c in ("x", "y", "z")]
    (row,), _ = folded(parts, WORDS)
    assert (row.numbers, row.name) == ((0, 1, 2, 3, 4, 5), "POOL/CLASS")


def test_rows_that_no_order_describes_stay_apart():
    parts = [("a/x", ""), ("b/y", ""), ("a/y", "other")]
    rows, _ = folded(parts, WORDS)
    assert [row.name for row in rows] == ["a/x", "b/y", "a/y"]


def test_other_names_stand_in_braces():
    (rank,), _ = folded([("rank-1/kv", ""), ("rank-2/kv", ""), ("rank-3/kv", "")], WORDS)
    (day,), _ = folded([("clock/monday", ""), ("clock/sunday", "")], WORDS)
    assert (rank.name, day.name) == ("rank-{1..3}/kv", "clock/{monday,sunday}")


@pytest.mark.parametrize(
    "numbers, text",
    [
        ([3], "3"),
        ([2, 3, 4], "2-4"),
        ([1, 5, 9], "1, 5, 9"),
        ([9, 16, 23, 30], "9, 16, ..., 30"),
        ([1, 2, 5, 6], "1-2, 5-6"),
    ],
)
def test_numbers_are_short(numbers, text):
    assert shown(numbers) == text
