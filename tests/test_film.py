"""Moving pictures of policies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from baselines import make_policy
from experiments import film
from experiments.film import BEST, frames_of
from llmscale_env.envs import ENVIRONMENTS
from llmscale_env.scenarios import load_scenario
from tests.small_world import SMALL_WORLD


def test_a_film_shows_the_episode_as_it_goes_on():
    scenario = load_scenario(SMALL_WORLD, horizon_s=120.0)
    frames = frames_of(scenario, make_policy("static"), 0, 5)
    assert len(frames) == 5
    inked = [int((frame < 250).any(axis=2).sum()) for frame in frames]
    assert inked[0] < inked[2] < inked[4]
    again = frames_of(scenario, make_policy("static"), 0, 5)
    assert all(np.array_equal(a, b) for a, b in zip(frames, again, strict=True))
    assert len(frames_of(scenario, make_policy("static"), 0, 1000)) < 20  # one per decision


def test_the_command_writes_a_gif(tmp_path: Path, capsys):
    from PIL import Image

    out = tmp_path / "new" / "a.gif"
    words = ["env=mixed-slo-hours", f"scenario={SMALL_WORLD}", "scenario.horizon_s=120", "frames=4"]
    assert film.main([*words, "policy=static", "width=300", f"out={out}"]) == 0
    assert "static" in capsys.readouterr().out
    with Image.open(out) as picture:
        assert (picture.n_frames, picture.size) == (4, (300, 240))


@pytest.mark.parametrize(
    "words, message",
    [
        (["policy=static"], "env= is missing"),
        (["env=mixed-slow"], "unknown environment"),
        (["env=mixed-slo-large"], "policy= is missing"),
        (["env=placement", "frames=1"], "frames = '1': must be an integer in 2..10000"),
        (["env=placement", "policy=qlmm"], "qlmm"),
        (["env=placement", "policy=qlm", "scenario.horizon_s=10"], "qlm"),
    ],
)
def test_slips_are_told_in_one_line(words: list[str], message: str, tmp_path: Path, capsys):
    assert film.main([*words, f"out={tmp_path / 'a.gif'}"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_every_film_is_of_an_environment_that_ships():
    assert BEST.keys() <= {entry.short_name for entry in ENVIRONMENTS}
    images = Path(film.IMAGES)
    assert {path.stem.removeprefix("film_") for path in images.glob("film_*.gif")} == set(BEST)
