"""What an agent sees tells neither what will come nor how near the horizon is, but where its page says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llmscale_env.control.forecast import FORECASTERS
from llmscale_env.control.reward import draw_requests
from llmscale_env.envs import core
from llmscale_env.envs.observation_blocks import endpoints as endpoint_blocks
from llmscale_env.sim.compile import ps
from tests.env_kinds import DAY, KINDS, MULTICAST, REGION, each_kind

LONGER = 4
"""Times the short episodes of `env_kinds`: so that queues and trends have time to build up."""


def longer(kind, times: float):
    return {**kind.short, "horizon_s": times * kind.short["horizon_s"]}


def give(monkeypatch, table):
    """Every episode has the requests that `table` gives for its scenario."""
    monkeypatch.setattr(core, "draw_requests", lambda scenario, rng: table(scenario))


def seen_until(env, end_s: float):
    """All that random (seeded) actions see at decisions until `end_s`, by name."""
    rng = np.random.default_rng(1)
    observation, info = env.reset(seed=0)
    seen = {"observation": [observation], "mask": [info["action_mask"]], "told": []}
    while True:
        observation, reward, _, truncated, info = env.step(rng.integers(env.action_space.nvec))
        if truncated or env.view().time_s > end_s + 1e-9:
            return {name: np.array(values) for name, values in seen.items()}
        seen["observation"].append(observation)
        seen["mask"].append(info["action_mask"])
        seen["told"].append([reward, *info["metrics"].values()])


def two_futures(kind, forecaster, monkeypatch):
    """What is seen of two episodes until they part, after half of their time."""
    env = kind.single(overrides=longer(kind, LONGER), forecaster=forecaster)
    half_s = env.scenario.horizon_s / 2
    whole = draw_requests(env.scenario, np.random.default_rng(0))
    later = whole.arrival_s >= half_s
    kept = ~later | (np.arange(len(whole)) % 3 == 0)
    other = replace(
        whole,
        input_tokens=np.where(later, whole.input_tokens + 100, whole.input_tokens),
        output_tokens=np.where(later, 1, whole.output_tokens),
        predicted_output_tokens=np.where(later, 7, whole.predicted_output_tokens),
    ).take(np.flatnonzero(kept))
    assert later.any()
    assert not later.all()
    seen = []
    for table in (whole, other):
        give(monkeypatch, lambda scenario, table=table: table)
        seen.append(seen_until(env, half_s))
    return seen


TOLD = [name for name, kind in FORECASTERS.items() if kind.is_clairvoyant]


@pytest.mark.parametrize(
    "kind, forecaster",
    [(kind, "ewma") for kind in KINDS]
    + [(kind, name) for kind in (DAY, MULTICAST) for name in FORECASTERS if name not in TOLD],
    ids=lambda value: getattr(value, "id", value),
)
def test_nothing_that_is_seen_changes_when_the_future_does(kind, forecaster, monkeypatch):
    one, two = two_futures(kind, forecaster, monkeypatch)
    for name, values in one.items():
        assert values.tobytes() == two[name].tobytes(), name


@pytest.mark.parametrize("forecaster", TOLD)
def test_who_is_told_the_future_is_seen_to_be(forecaster, monkeypatch):
    one, two = two_futures(DAY, forecaster, monkeypatch)
    assert (one["observation"] != two["observation"]).any()


@each_kind
def test_only_a_clock_that_the_page_names_counts_to_the_horizon(kind, monkeypatch):
    """Of two episodes with the same requests one ends later: until the other ends they look alike."""
    # Scales that are means over an episode would differ a little.
    monkeypatch.setattr(
        "llmscale_env.control.reward._expected_arrivals",
        lambda key: (float(key.scenario.n_steps),) * len(key.scenario.classes),
    )
    monkeypatch.setattr(endpoint_blocks, "_mean_load", lambda text: np.full((2, 3, 2), 100.0))
    envs = [kind.single(overrides=longer(kind, times)) for times in (LONGER, 2 * LONGER)]
    for block in (block for env in envs for block in env.core.codec.encoder.blocks):
        if block.name == "queues":
            block._full = 1000.0
    end_s = envs[0].scenario.horizon_s
    whole = draw_requests(envs[1].scenario, np.random.default_rng(0))

    def table(scenario):
        return whole.take(np.flatnonzero(whole.arrival_ps < ps(scenario.horizon_s)))

    give(monkeypatch, table)
    short, long = (seen_until(env, end_s - 1e-6)["observation"] for env in envs)
    names = np.array([entry.name for entry in envs[0].codec.encoder.entries])
    told = set(names[(short != long).any(axis=0)])
    assert told == ({"clock/elapsed"} & set(names))
    assert (told == set()) == (kind in (DAY, REGION))
    assert len(short) > 30
