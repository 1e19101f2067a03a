"""Policies that ship: found by name, refused where they are not whole."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from agents.configuration.config import make_config, parse_words, read_config
from agents.evaluate import make_policies
from agents.learned import LearnedPolicy
from agents.models.store import ModelError
from agents.pretrained import (
    FOLDER,
    KEYS,
    MAX_BYTES,
    SUMS,
    Pretrained,
    PretrainedError,
    find,
    is_pretrained,
    shipped,
    sums_of,
)
from llmscale_env._cli import Slip
from llmscale_env.scenarios import load_scenario
from tests.small_world import SMALL_WORLD


def ship(home: Path, name: str, environment: str = "placement", **card: object) -> Path:
    folder = home / name
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"zip")
    (folder / "config.yaml").write_text("env: placement\n")
    plain = {**dict.fromkeys(KEYS, "said"), "environment": environment, **card}
    (folder / "card.yaml").write_text(yaml.safe_dump(plain))
    (home / SUMS).write_text(sums_of(home))
    return folder


def test_names():
    assert is_pretrained("pretrained")
    assert is_pretrained("pretrained:small")
    assert not is_pretrained("pretrained-run/")


def test_the_only_one_the_recommended_one_and_one_by_name(tmp_path: Path):
    ship(tmp_path, "a")
    assert find("pretrained", "placement", tmp_path).name == "a"
    ship(tmp_path, "b", recommended=True)
    assert find("pretrained", "placement", tmp_path).name == "b"
    assert find("pretrained:a", "placement", tmp_path).model == tmp_path / "a" / "model.safetensors"
    assert [each.name for each in shipped(folder=tmp_path)] == ["a", "b"]


def test_one_clear_error_where_none_ships(tmp_path: Path):
    with pytest.raises(PretrainedError, match=r"none ships at all\. Train one: .* env=placement"):
        find("pretrained", "placement", tmp_path)
    ship(tmp_path, "a", "burst-multicast")
    with pytest.raises(
        PretrainedError, match=r"for 'placement'; of others there are, by name: \['pretrained:a'\]"
    ):
        find("pretrained", "placement", tmp_path)
    with pytest.raises(PretrainedError, match=r"of this name ships; there are \['a'\]"):
        find("pretrained:bcd", "burst-multicast", tmp_path)
    with pytest.raises(PretrainedError, match="quantile= is all that may follow"):
        find("pretrained:quant=0.8", "burst-multicast", tmp_path)
    with pytest.raises(PretrainedError, match="'pretrained:': no trained policy of this name"):
        find("pretrained:", "placement", tmp_path)  # none would be given, not the environment's
    ship(tmp_path, "small-seed0", "burst-multicast")
    with pytest.raises(PretrainedError, match=r"did you mean small-seed0\?"):
        find("pretrained:small-sed0", "burst-multicast", tmp_path)


def test_several_without_a_recommendation_are_named(tmp_path: Path):
    ship(tmp_path, "a")
    ship(tmp_path, "b")
    with pytest.raises(PretrainedError, match="name one, as pretrained:a"):
        find("pretrained", "placement", tmp_path)


def test_what_is_not_whole_is_refused(tmp_path: Path):
    (ship(tmp_path, "a") / "config.yaml").unlink()
    with pytest.raises(PretrainedError, match=r"'a': config\.yaml is missing"):
        shipped(folder=tmp_path)


def test_a_model_that_is_too_large_is_refused(tmp_path: Path):
    (ship(tmp_path, "a") / "model.safetensors").write_bytes(b"0" * (MAX_BYTES + 1))
    (tmp_path / SUMS).write_text(sums_of(tmp_path))
    with pytest.raises(PretrainedError, match="2,000,001 bytes; at most 2,000,000"):
        shipped(folder=tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml"])
def test_another_file_than_the_one_that_is_listed_is_refused(tmp_path: Path, name: str):
    path = ship(tmp_path, "a") / name
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(
        PretrainedError, match=rf"'a': {name} is not the file that SHA256SUMS lists"
    ):
        shipped(folder=tmp_path)


def test_what_is_not_listed_is_refused(tmp_path: Path):
    ship(tmp_path, "a")
    (tmp_path / SUMS).unlink()
    with pytest.raises(PretrainedError, match="is not the file that SHA256SUMS lists"):
        shipped(folder=tmp_path)


def test_all_that_ships_is_listed():
    assert (FOLDER / SUMS).read_text() == sums_of(FOLDER)


def test_a_card_that_says_too_little_is_refused(tmp_path: Path):
    ship(tmp_path, "a", limits=None)
    with pytest.raises(PretrainedError, match=r"card.yaml lacks \['limits'\]"):
        shipped(folder=tmp_path)


@pytest.mark.parametrize("each", shipped(), ids=lambda each: each.name)
def test_everything_that_ships_is_whole(each: Pretrained):
    assert each.model.stat().st_size <= MAX_BYTES
    assert len(each.card["revision"]) == 40


@pytest.mark.parametrize("environment", sorted({each.environment for each in shipped()}))
def test_every_environment_that_ships_some_says_which_is_meant(environment: str):
    assert find("pretrained", environment).environment == environment


@pytest.mark.parametrize("each", shipped(), ids=lambda each: each.name)
def test_the_command_of_a_card_makes_its_configuration(each: Pretrained):
    words = shlex.split(each.card["command"])
    assert words[:3] == ["python", "-m", "agents.train"]
    changes, _ = parse_words(words[3:], ("env",))
    made = make_config(each.environment, changes)
    ships = read_config(each.folder)
    free = ("env_threads", "torch_threads")  # change nothing that comes of it
    assert made.model_dump(exclude=set(free)) == ships.model_dump(exclude=set(free))


def test_nobody_is_a_slip():
    with pytest.raises(Slip, match="policies = ',': names no policy"):
        make_policies(",", "burst-multicast", load_scenario(SMALL_WORLD))


def test_evaluate_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agents.pretrained.FOLDER", tmp_path)
    with pytest.raises(Slip, match="policies: pretrained: no trained policy ships for 'placement'"):
        make_policies("pretrained,static", "placement", load_scenario("placement"))
    ship(tmp_path, "a")
    with pytest.raises(Slip, match=r"a/config\.yaml: agent: Field required"):  # found, but no run
        make_policies("static,pretrained", "placement", load_scenario("placement"))


def test_a_network_runs_in_other_worlds_that_have_its_form(capsys: pytest.CaptureFixture[str]):
    name = "pretrained:mixed-slo-hours-pupil"
    make_policies(name, "mixed-slo", load_scenario("mixed-slo"))
    said = f"policies: {name!r} was trained on mixed-slo-hours, and runs on mixed-slo\n"
    assert capsys.readouterr().err == said
    with pytest.raises(Slip, match="mixed-slo-hours-pupil"):
        make_policies(name, "placement", load_scenario("placement"))


def test_a_folder_named_like_a_policy_is_told_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    scenario = load_scenario("burst-multicast")
    ships = min(each.folder for each in shipped("burst-multicast"))
    monkeypatch.chdir(tmp_path)
    for name in ("static", "pretrained"):
        shutil.copytree(ships, tmp_path / name)
    made = make_policies("static,./static,pretrained,./pretrained", "burst-multicast", scenario)
    assert [policy.name for policy in made] == ["static", "./static", "pretrained", "./pretrained"]
    assert [hasattr(policy, "quantile") for policy in made] == [False, True, True, True]
    assert capsys.readouterr().err.splitlines() == [
        "policies: 'static' is the policy; the folder of that name is ./static",
        "policies: 'pretrained' is the policy; the folder of that name is ./pretrained",
    ]
    make_policies(None, "burst-multicast", scenario)  # nobody was named
    assert capsys.readouterr().err == ""
    with pytest.raises(Slip, match="policies: 'static/' is given twice"):
        make_policies("./static,static/", "burst-multicast", scenario)


def test_lists_of_policies_with_parameters_are_read_as_people_write_them():
    scenario = load_scenario(SMALL_WORLD)
    text = "static:interactive=6,mixed=4,hpa:kv_target=0.5+period_s=60,chiron"
    names = [policy.name for policy in make_policies(text, "burst-multicast", scenario)]
    assert names == ["static:interactive=6+mixed=4", "hpa:kv_target=0.5+period_s=60", "chiron"]


def test_a_network_is_not_run_on_pools_in_another_order():
    scenario = load_scenario("mixed-slo-hours")
    (pupil,) = (each for each in shipped("mixed-slo-hours") if each.recommended)
    policy = LearnedPolicy(pupil.folder)
    policy.fit(scenario)
    fleet = scenario.fleet.model_copy(update={"pools": scenario.fleet.pools[::-1]})
    with pytest.raises(ModelError, match="sees 'interactive/active' where scenario"):
        policy.fit(scenario.model_copy(update={"fleet": fleet}))
