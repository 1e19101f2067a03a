"""The table of a comparison: what stands in brackets, and what the line below it says of them."""

from __future__ import annotations

import pytest

from agents.comparison import metrics_of, summarise, table
from llmscale_env.scenarios import load_scenario

SCENARIO = load_scenario("mixed-slo-v0")


def shown(episodes: int) -> list[str]:
    """Lines of the table of two policies whose rewards in episode k are -k and -2k."""
    rows = [
        {
            "policy": policy,
            "seed": k,
            **dict.fromkeys(metrics_of(SCENARIO), 0.5),
            "reward": -factor * k,
        }
        for policy, factor in (("one", 1.0), ("two", 2.0))
        for k in range(1, episodes + 1)
    ]
    return table(summarise(rows, SCENARIO), SCENARIO).splitlines()


def test_one_episode_has_no_interval():
    lines = shown(1)
    assert not any("nan" in line for line in lines)
    assert lines[2].split()[:4] == ["one", "-1.0", "-1.0", "-"]
    assert lines[3].split()[:4] == ["two", "-2.0", "-2.0", "-1.0"]
    assert lines[-1].startswith("One episode, the same requests for all: no intervals.")


@pytest.mark.parametrize(
    "episodes, kind", [(2, "Student's t"), (9, "Student's t"), (10, "bootstrap")]
)
def test_the_kind_of_interval_is_told(episodes: int, kind: str):
    lines = shown(episodes)
    mean = (episodes + 1) / 2
    assert lines[3].split()[:2] == ["two", f"{-2 * mean:.1f}"]
    assert lines[3].count("[") == 2
    assert f"95 % {kind} intervals" in lines[-1]
