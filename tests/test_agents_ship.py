"""Runs become policies that ship: the same actions in a smaller file, with a card that says where from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from agents import pretrained, ship, train
from agents.learned import LearnedPolicy
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import load_scenario
from tests.small_runs import SMALL_RUN, rows
from tests.small_world import SMALL_WORLD

SMALL = [
    *SMALL_RUN,
    "ppo.n_steps=8",
    "validation_every=16",
    "validation_episodes=2",
    "evaluation_episodes=0",
    "references=none",
    "total_timesteps=16",
    "lagrangian.attainment=0.9",
]
SAID = {"about": "it scales", "data": "a minute", "limits": "all", "figures": {"test": "none"}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ship") / "run"
    assert train.main([*SMALL, "seed=3", f"out={folder}"]) == 0
    return folder


@pytest.fixture
def card(tmp_path: Path) -> Path:
    path = tmp_path / "said.yaml"
    path.write_text(yaml.safe_dump(SAID))
    return path


@pytest.fixture
def best(card: Path) -> Path:
    """A card for the run that `pretrained` is to mean."""
    card.write_text(yaml.safe_dump({**SAID, "recommended": True}))
    return card


def test_what_ships_acts_as_the_run_does(run: Path, card: Path, tmp_path: Path):
    home = tmp_path / "home"
    assert ship.main([f"runs={run}", f"card={card}", "name=tiny", f"out={home}"]) == 0
    (found,) = pretrained.shipped("burst-multicast", home)
    assert found.name == "tiny"
    assert found.model.stat().st_size < 0.5 * (run / "model_last.safetensors").stat().st_size
    short = load_scenario(SMALL_WORLD, horizon_s=60.0)
    one, other = (run_episode(LearnedPolicy(path), short, 5).summary for path in (run, found.model))
    assert one == other


def test_the_card_says_where_it_comes_from(run: Path, card: Path, tmp_path: Path):
    folder = ship.ship(run, tmp_path / "tiny", SAID)
    said = yaml.safe_load((folder / "card.yaml").read_text())
    assert said["environment"] == "burst-multicast"
    assert said["id"] == "llmscale/BurstMulticast-v0"
    assert said["seeds"] == [3]
    assert said["command"].startswith("python -m agents.train env=burst-multicast")
    assert str(run) not in said["command"]
    session = json.loads((run / "run.json").read_text())["sessions"][0]
    assert said["revision"] == session["git"]
    assert said["figures"]["test"] == "none"
    measured = said["figures"]["validation"]
    steps = str(measured["after_steps"])
    seen = [row for row in rows(run / "validation.csv") if row["timesteps"] == steps]
    assert measured["episodes"] == len(seen) == 2
    hours = np.mean([float(row["gpu_hours"]) for row in seen])
    assert measured["gpu_hours"] == pytest.approx(hours, abs=1e-3)
    reward = np.mean([float(row["reward"]) for row in seen])
    assert measured["reward"] == pytest.approx(reward, abs=0.05)
    assert 0 <= measured["interactive_on_time"] <= 100


def test_slips(run: Path, card: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def said(*words: str) -> str:
        assert ship.main(list(words)) == 2
        return capsys.readouterr().err

    assert "card= is missing" in said(f"runs={run}")
    assert "there is no such file" in said(f"runs={run}", "card=nothing.yaml")
    (tmp_path / "little.yaml").write_text("about: it scales")
    message = said(f"runs={run}", f"card={tmp_path / 'little.yaml'}")
    assert "lacks ['data', 'limits']" in message
    assert "several are 'burst-multicast-ppo-seed3'" in said(f"runs={run},{run}", f"card={card}")
    assert "is no run folder" in said(f"runs={tmp_path}", f"card={card}")
    assert "names no folder" in said("runs=,", f"card={card}")
    for name in ("../evil", "a:b", "-x"):
        assert "must be letters" in said(f"runs={run}", f"card={card}", f"name={name}")
    # What has shipped is no run any more, and nothing is half-written.
    out = tmp_path / "out"
    assert ship.main([f"runs={run}", f"card={card}", f"out={out}"]) == 0
    capsys.readouterr()
    again = tmp_path / "again"
    shipped = out / "burst-multicast-ppo"
    message = said(f"runs={shipped}", f"card={card}", f"out={again}")
    assert "has no run.json" in message
    assert not again.exists()
    assert "ships already" in said(f"runs={run}", f"card={card}", f"out={out}")
    assert ship.main([f"runs={run}", f"card={card}", f"out={out}", "replace=true"]) == 0


@pytest.mark.parametrize(
    "content, message",
    [
        (b"about: \xff\xfe", "not valid YAML"),
        (b"- a list", "must be keys"),
        ({"figures": "abc"}, "must be names and what they say"),
        ({"recommended": "yes, please"}, "must be true or false"),
        ({"environment": "placement"}, "environment = 'placement'"),
        ({"id": "llmscale/Other-v9"}, "id = 'llmscale/Other-v9': comes from the run"),
        ({"seeds": [7]}, "seeds = [7]: comes from the run"),
        ({"figures": {"validation": {"reward": 99}}}, "figures.validation: comes from the run"),
    ],
)
def test_bad_cards_ship_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content, message: str
):
    path = tmp_path / "bad.yaml"
    path.write_bytes(
        content if isinstance(content, bytes) else yaml.safe_dump({**SAID, **content}).encode()
    )
    out = tmp_path / "out"
    assert ship.main([f"runs={run}", f"card={path}", f"out={out}"]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_the_best_validated_seed_is_recommended(run: Path, best: Path, tmp_path: Path, capsys):
    better = copied(run, tmp_path / "better", ("seed: 3", "seed: 4"))
    validation = pd.read_csv(better / "validation.csv")
    validation["joint/slo_attainment"] = 1.0
    for name in ("interactive", "batch"):
        validation[f"{name}/slo_attainment"] = 1.0
    validation.to_csv(better / "validation.csv", index=False)
    home = tmp_path / "home"
    assert ship.main([f"runs={run},{better}", f"card={best}", f"out={home}"]) == 0
    assert (
        pretrained.find("pretrained", "burst-multicast", home).name == "burst-multicast-ppo-seed4"
    )
    # Another one is not silently recommended beside it.
    capsys.readouterr()
    assert ship.main([f"runs={run}", f"card={best}", f"out={home}", "name=other"]) == 2
    assert "'burst-multicast-ppo-seed4' is recommended" in capsys.readouterr().err
    assert not (home / "other").exists()


def copied(run: Path, folder: Path, *changes: tuple[str, str]) -> Path:
    """A run's folder again, with other texts in its configuration."""
    shutil.copytree(run, folder)
    config = (folder / "config.yaml").read_text()
    for old, new in changes:
        assert old in config
        config = config.replace(old, new, 1)
    (folder / "config.yaml").write_text(config)
    return folder


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("  start: 1.0", "  start: 0.5", "lagrangian.start is 1.0 and 0.5"),
        ("horizon_s: 60", "horizon_s: 90", "scenario.horizon_s is 60 and 90"),
        (
            f"scenario: {SMALL_WORLD}",
            "scenario: chiron-wa",
            f"scenario is '{SMALL_WORLD}' and 'chiron-wa'",
        ),
        ("  horizon_s: 60\n", "", "scenario.horizon_s is 60 and None"),
        ("gamma: 0.95", "gamma: 0.9", "ppo.gamma is 0.95 and 0.9"),
    ],
)
def test_only_seeds_of_one_training_are_ranked(
    run: Path, best: Path, tmp_path: Path, capsys, old: str, new: str, said: str
):
    """The price of a miss is half as high: the same validation is worth more, and means no better policy."""
    other = copied(run, tmp_path / "other", ("seed: 3", "seed: 4"), (old, new))
    home = tmp_path / "home"
    assert ship.main([f"runs={run},{other}", f"card={best}", f"out={home}"]) == 2
    assert capsys.readouterr().err == (
        f"ship: card: recommended = true: {run} and {other} may differ in their seeds alone; {said}\n"
    )
    assert not home.exists()


def test_what_changes_nothing_may_differ_among_ranked_runs(run: Path, best: Path, tmp_path: Path):
    changes = [("seed: 3", "seed: 4"), ("env_threads: 2", "env_threads: 1")]
    changes += [("evaluation_episodes: 0", "evaluation_episodes: 5")]
    other = copied(run, tmp_path / "other", *changes)
    home = tmp_path / "home"
    assert ship.main([f"runs={run},{other}", f"card={best}", f"out={home}"]) == 0


def test_a_broken_policy_among_those_that_ship_is_told_in_a_line(
    run: Path, best: Path, tmp_path: Path, capsys
):
    home = tmp_path / "home"
    (home / "broken").mkdir(parents=True)
    (home / "broken" / "card.yaml").write_text("about: nothing")
    assert ship.main([f"runs={run}", f"card={best}", f"out={home}"]) == 2
    said = "ship: pretrained policy 'broken': model.safetensors is missing\n"
    assert capsys.readouterr().err == said
    assert [path.name for path in home.iterdir()] == ["broken"]


def test_a_damaged_run_is_told_in_a_line(run: Path, card: Path, tmp_path: Path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    for text in ("{", "[]", '{"sessions": []}'):
        (broken / "run.json").write_text(text)
        assert ship.main([f"runs={broken}", f"card={card}", f"out={tmp_path / 'out'}"]) == 2
        assert "is damaged" in capsys.readouterr().err


def test_files_of_other_policies_are_not_approved(run: Path, card: Path, tmp_path: Path, capsys):
    home = tmp_path / "home"
    words = [f"runs={run}", f"card={card}", f"out={home}"]
    assert ship.main([*words, "name=one"]) == 0
    config = home / "one" / "config.yaml"
    whole = config.read_text()
    config.write_text(whole + "# changed")
    before = (home / "SHA256SUMS").read_text()
    assert ship.main([*words, "name=two"]) == 2
    assert (
        "one/config.yaml is missing, or is not the file that is listed" in capsys.readouterr().err
    )
    assert (home / "SHA256SUMS").read_text() == before
    assert not (home / "two").exists()
    config.write_text(whole)
    assert ship.main([*words, "name=two"]) == 0
    assert (home / "SHA256SUMS").read_text() == pretrained.sums_of(home)


def test_a_model_of_an_older_version_gives_way(run: Path, card: Path, tmp_path: Path):
    words = [f"runs={run}", f"card={card}", f"out={tmp_path / 'home'}", "name=one"]
    assert ship.main(words) == 0
    old = tmp_path / "home" / "one" / "model.zip"
    old.write_bytes(b"PK")
    assert ship.main([*words, "replace=true"]) == 0
    assert not old.exists()


@pytest.mark.parametrize("replaces", [False, True])
def test_the_same_command_mends_what_an_interrupt_left(
    run: Path, best: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaces: bool
):
    home = tmp_path / "home"
    words = [f"runs={run}", f"card={best}", f"out={home}", "name=one"]
    if replaces:
        assert ship.main(words) == 0
        words.append("replace=true")
        # As if the shipped one had been another: what is listed is not what will be there.
        sums = home / "SHA256SUMS"
        sums.write_text("".join("0" * 64 + line[64:] for line in sums.read_text().splitlines(True)))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        real = ship.write_text
        patch.setattr(
            ship, "write_text", lambda p, t: killed() if p.name == "SHA256SUMS" else real(p, t)
        )
        assert ship.main(words) == 130
    pretrained._read.cache_clear()
    with pytest.raises(pretrained.PretrainedError, match="ship it again"):
        pretrained.shipped(folder=home)
    assert ship.main(words) == 0
    pretrained._read.cache_clear()
    assert [policy.name for policy in pretrained.shipped(folder=home)] == ["one"]
