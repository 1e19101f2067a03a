"""The command lines of training and evaluation: what is taken, and how slips are told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agents.configuration.config import (
    EVALUATION_SEED,
    FIRST_TRAINING_SEED,
    VALIDATION_SEED,
    environment_names,
    make_config,
    parse_words,
    read_config,
)
from agents.configuration.settings import SWITCHES, RandomiseConfig, WarmStartConfig
from agents.statistics import (
    by_policy,
    interquartile_mean,
    mean_interval,
    paired_difference,
    share_better,
)
from agents.train import plan
from llmscale_env._cli import Slip, parse_scenario_words, run_command, split_scenario_words


def config(*words: str):
    return make_config("burst-multicast", parse_words(words, ())[0])


@pytest.mark.parametrize("env", environment_names())
def test_shipped_defaults_are_valid(env: str):
    assert make_config(env, {}).env == env


def test_words_change_the_defaults():
    changed = config(
        "total_timesteps=200_000",
        "ppo.learning_rate=3e-4",
        "ppo.net=[32, 16]",
        "ppo.target_kl=null",
        "references=static,hpa",
        "scenario.fleet.max_gpus=12",
        "scenario.workload=chat",
    )
    assert changed.total_timesteps == 200_000
    assert changed.ppo.learning_rate == 3e-4
    assert changed.ppo.net == (32, 16)
    assert changed.ppo.target_kl is None
    assert changed.references == ("static", "hpa")
    assert changed.overrides == {"fleet.max_gpus": 12, "workload": "chat"}
    assert config("references=none").references == ()


def test_words_win_over_a_recipe(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "agent: ppo\nppo.gamma: 0.5\nppo.net: [8]\nreferences: [static]\nscenario.horizon_s: 60\n"
    )
    for words in (["ppo.gamma=0.6", f"recipe={path}"], [f"recipe={path}", "ppo.gamma=0.6"]):
        config = make_config("burst-multicast", parse_words(words, ("env",))[0])
        assert (config.hyper.gamma, config.hyper.net) == (0.6, (8,))
        assert config.references == ("static",)
        assert config.overrides == {"horizon_s": 60}


@pytest.mark.parametrize(
    "text, said",
    [
        ("ppo.gama: 0.5", "unknown option 'ppo.gama' (did you mean ppo.gamma?)"),
        ("ppo: {gama: 0.5}", "unknown option 'ppo.gama' (did you mean ppo.gamma?)"),
        ("warm_start: {kl: 1}\nwarm_start.kl: 2", "warm_start.kl is given twice"),
        ("- 1", "must be options and their values"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_slip_in_a_recipe_names_it(tmp_path: Path, text: str, said: str):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(Slip) as slip:
        parse_words([f"recipe={path}"], ("env",))
    assert str(slip.value).startswith(f"recipe = {str(path)!r}: {said}")
    with pytest.raises(Slip, match=r"recipe = 'nothing': there is no such file"):
        parse_words(["recipe=nothing"], ("env",))
    path.write_text("seed: 3")
    with pytest.raises(Slip, match="recipe is given twice"):
        parse_words([f"recipe={path}", f"recipe={path}"], ("env",))


def test_a_recipe_may_have_sections(tmp_path: Path):
    flat, sections = tmp_path / "flat.yaml", tmp_path / "sections.yaml"
    flat.write_text(
        "ppo.gamma: 0.5\nscenario: chat.yaml\nscenario.fleet.max_gpus: 9\nreferences: [static]\n"
        "randomise.groups: 2\nrandomise.ranges.workload.rate_scale: [0.5, 2]\n"
    )
    sections.write_text(
        "ppo: {gamma: 0.5}\nscenario: {fleet.max_gpus: 9}\nreferences: [static]\n"
        "randomise: {groups: 2, ranges: {workload.rate_scale: [0.5, 2]}}\n"
    )
    one, two = (parse_words([f"recipe={path}"], ())[0] for path in (flat, sections))
    assert one.pop("scenario") == "chat.yaml"
    assert one == two
    assert make_config("burst-multicast", two).randomise.ranges["workload.rate_scale"].high == 2


def test_ranges_that_are_given_replace_those_of_the_defaults():
    assert list(make_config("mixed-slo", {}).randomise.ranges) == [
        "workload.streams.chat.rate_per_s"
    ]
    mine = make_config("mixed-slo", {"randomise.ranges.workload.rate_scale": [0.5, 2]}).randomise
    assert (list(mine.ranges), mine.groups) == (["workload.rate_scale"], 2)


def test_a_section_is_switched_off_whole():
    off, _ = parse_words(["randomise.ranges=null"], ())
    assert make_config("mixed-slo", off).randomise == RandomiseConfig()


def test_an_empty_section_of_a_recipe_says_nothing(tmp_path: Path):
    path = tmp_path / "empty.yaml"
    path.write_text(
        "seed: 3\nwarm_start:\nlagrangian: {}\nscenario:\nppo:\nrandomise:\n  ranges:\n"
    )
    assert parse_words([f"recipe={path}"], ())[0] == {"seed": 3}


@pytest.mark.parametrize(
    "word, said",
    [
        (
            "randomise.ranges.horizon_s=5",
            "5: must be [low, high], two numbers, or have low and high, or choices",
        ),
        ("randomise.ranges.horizon_s=[1]", "[1]: must be [low, high], two numbers, or have low"),
        (
            "randomise.ranges.workload=[mixed-slo/test, chat]",
            "randomise.ranges.workload = ['mixed-slo/test', 'chat']: must be [low, high], two "
            "numbers, "
            "or have low and high, or choices, as {choices: [A, B, C]}",
        ),
        ("lagrangian.attainment=high", "lagrangian.attainment = 'high': must be a share"),
        ("lagrangian.attainment=1.5", "lagrangian.attainment = 1.5: must be a share of arrivals"),
        ("lagrangian.attainment={chat: 99}", "must be a share of arrivals in 0..1, one by class"),
    ],
)
def test_ranges_and_attainments_say_what_they_must_be(word: str, said: str):
    with pytest.raises(Slip) as slip:
        config(word)
    assert said in str(slip.value)


@pytest.mark.parametrize(
    "word, switch",
    [
        ("lagrangian.start=5.0", "lagrangian.attainment=0.9"),
        ("lagrangian.rate=0.0", "lagrangian.attainment={batch: 0.9}"),
        ("lagrangian.most=50.0", "lagrangian.attainment=0.9"),
        ("warm_start.episodes=8", "warm_start.policy=chiron"),
        ("warm_start.spread_settings=0.5", "warm_start.policy=chiron"),
        ("warm_start.kl_steps=100", "warm_start.policy=chiron"),
        ("randomise.groups=2", "randomise.ranges.horizon_s=[600, 1200]"),
        ("randomise.episodes=3", "randomise.ranges.horizon_s=[600, 1200]"),
    ],
)
def test_what_would_do_nothing_is_refused(word: str, switch: str):
    key, _, value = word.partition("=")
    section = key.partition(".")[0]
    needs = f"{section}.{SWITCHES[section]}"
    with pytest.raises(Slip) as slip:
        config(word)
    assert str(slip.value) == f"{key} = {value}: does nothing without {needs}"
    config(word, switch)


def test_a_divergence_needs_steps_in_which_it_falls():
    words = ["warm_start.policy=chiron", "warm_start.kl=0.5"]
    with pytest.raises(
        Slip, match=r"^warm_start\.kl = 0\.5: does nothing without warm_start\.kl_steps"
    ):
        config(*words)
    config(*words, "warm_start.kl_steps=1000")
    with pytest.raises(
        Slip, match=r"^warm_start\.kl_steps = 9: does nothing with warm_start\.kl = 0"
    ):
        config("warm_start.policy=chiron", "warm_start.kl=0", "warm_start.kl_steps=9")


def test_a_teacher_is_asked_now_and_then_only_where_its_copy_leads():
    words = ["warm_start.policy=twin", "warm_start.every=3"]
    with pytest.raises(Slip, match=r"^warm_start\.every = 3: .* warm_start\.rounds = 1"):
        config(*words)
    config(*words, "warm_start.rounds=2")


def test_prices_of_workloads_need_an_attainment():
    drawn = "randomise.ranges.workload={choices: [chat, spike]}"
    with pytest.raises(Slip, match=r"lagrangian\.per = 'workload': does nothing without"):
        config("lagrangian.per=workload", drawn)
    config("lagrangian.per=workload", drawn, "lagrangian.attainment=0.9")


def test_a_word_switches_off_what_a_recipe_says_of_a_section(tmp_path: Path):
    path = tmp_path / "copy.yaml"
    path.write_text(
        "warm_start: {policy: paced, episodes: 24}\nlagrangian: {attainment: 0.99, start: 5}\n"
    )
    words = [f"recipe={path}", "warm_start.policy=null"]
    made = config(*words)
    assert made.warm_start == WarmStartConfig()
    assert made.lagrangian.start == 5
    with pytest.raises(Slip, match=r"warm_start\.episodes = 8: does nothing without"):
        config(*words, "warm_start.episodes=8")


def test_configuration_survives_its_file(tmp_path: Path):
    written = config("seed=3", "ppo.net=[]", "scenario.fleet.max_gpus=12")
    (tmp_path / "config.yaml").write_text(written.to_yaml())
    assert read_config(tmp_path) == written


@pytest.mark.parametrize(
    "word,said",
    [
        ("total_timestep=5", "did you mean total_timesteps?"),
        ("gamma=0.9", "did you mean ppo.gamma?"),
        ("ppo.gama=0.9", "did you mean ppo.gamma?"),
        ("nonsense=1", "there are ["),
        ("seed", "'seed': expected key=value"),
        ("seed=", "seed= lacks a value"),
        ("seed=-1", "seed = -1: Input should be greater than or equal to 0"),
        ("seed=one", "seed = 'one'"),
        ("n_envs=0", "n_envs = 0"),
        ("ppo.gamma=1.5", "ppo.gamma = 1.5"),
        ("ppo.net=[64", "cannot be read as a value"),
        ("agent=sac", "agent = 'sac'"),
        ("ppo.batch_size=1000000", "must be at most n_envs * ppo.n_steps"),
    ],
)
def test_a_slip_names_field_and_value(word: str, said: str):
    with pytest.raises(Slip, match=r".") as slip:
        config(word)
    assert said in str(slip.value)


def test_an_option_twice_is_a_slip():
    with pytest.raises(Slip, match="seed is given twice"):
        config("seed=1", "seed=2")


def test_scenario_words_are_told_from_options():
    options, name, overrides = parse_scenario_words(
        ["env=burst-multicast", "scenario=mine.yaml", "scenario.horizon_s=600"], ("env",)
    )
    assert options == {"env": "burst-multicast"}
    assert name == "mine.yaml"
    assert overrides == {"horizon_s": 600}
    with pytest.raises(Slip, match="did you mean episodes"):
        parse_scenario_words(["episode=3"], ("episodes",))


@pytest.mark.parametrize(
    "words, said",
    [
        (["scenario.horizon_s"], "'scenario.horizon_s': expected scenario.FIELD=VALUE"),
        (["scenario.=3"], "'scenario.=3': expected scenario.FIELD=VALUE"),
        (["scenario.horizon_s={"], "scenario.horizon_s = '{': cannot be read as a value"),
        (["scenario.horizon_s=3", "scenario.horizon_s=4"], "scenario.horizon_s is given twice"),
    ],
)
def test_slips_in_fields_of_the_scenario(words: list[str], said: str):
    with pytest.raises(Slip) as slip:
        split_scenario_words(words)
    assert str(slip.value) == said


def test_fields_of_the_scenario_are_numbers_where_they_look_like_it():
    plain, changed = split_scenario_words(["policy=static", "scenario.a.b=3e-4", "scenario.c=chat"])
    assert (plain, changed) == (["policy=static"], {"a.b": 3e-4, "c": "chat"})


def test_a_failing_file_without_a_name_is_one_line(capsys: pytest.CaptureFixture[str]):
    def work(_: list[str]) -> int:
        raise OSError("no space left")

    assert run_command("cook", None, ["x"], work) == 2
    assert capsys.readouterr().err == "cook: no space left\n"


def test_seeds_of_training_validation_and_evaluation_never_meet():
    made = config("n_envs=64", "validation_episodes=500", "evaluation_episodes=5000")
    training = set(made.training_seeds())
    assert len(training) == 64
    assert min(training) >= FIRST_TRAINING_SEED
    assert made.evaluation_seeds() == range(EVALUATION_SEED, EVALUATION_SEED + 5000)
    assert made.validation_seeds() == range(VALIDATION_SEED, VALIDATION_SEED + 500)
    assert not set(made.evaluation_seeds()) & set(made.validation_seeds())
    other = config("n_envs=64", "seed=1")
    assert not set(other.training_seeds()) & training


def test_a_folder_in_use_is_a_slip(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Slip, match="is in use"):
        plan(["env=burst-multicast", f"out={tmp_path}"])


def test_resume_keeps_what_the_run_was_made_with(tmp_path: Path):
    (tmp_path / "config.yaml").write_text(config("seed=3", "total_timesteps=1000").to_yaml())
    words = ["env=burst-multicast", f"out={tmp_path}", "resume=true"]
    found, folder, resumes = plan([*words, "total_timesteps=5000"])
    assert (found.seed, found.total_timesteps, folder, resumes) == (3, 5000, tmp_path, True)
    plan([*words, "seed=3"])
    found, folder, _ = plan([f"out={tmp_path}", "resume=true", "total_timesteps=5000"])
    assert (found.env, found.total_timesteps, folder) == ("burst-multicast", 5000, tmp_path)
    with pytest.raises(Slip, match="env= is missing"):
        plan(["resume=true"])
    with pytest.raises(Slip, match="seed cannot change"):
        plan([*words, "seed=4"])
    with pytest.raises(Slip, match=r"scenario\.fleet\.max_gpus cannot change"):
        plan([*words, "scenario.fleet.max_gpus=4"])


def test_resume_without_a_run_is_a_slip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Slip, match="no unfinished run"):
        plan(["env=burst-multicast", "resume=true"])
    with pytest.raises(Slip, match="no run folder"):
        plan(["env=burst-multicast", "resume=true", f"out={tmp_path}"])


SLIPS = [
    ("train", ["env=burst-multicast", "total_timestep=5"], "did you mean total_timesteps?"),
    ("train", ["env=mixed-sol"], "did you mean mixed-slo?"),
    ("train", ["total_timesteps=5"], "env= is missing"),
    ("train", ["--env", "mixed-slo"], "such as env=mixed-slo"),
    ("train", ["env=llmscale/MixedSLO-Hours-v1"], "env=mixed-slo-hours"),
    ("evaluate", ["env=llmscale_env:llmscale/MixedSLO-v1"], "env=mixed-slo"),
    ("evaluate", ["--env", "mixed-slo"], "write env=VALUE"),
    ("train", ["env=mixed-slo", "references=aladdin"], "is made for placement, placement-per-req"),
    ("evaluate", ["env=mixed-slo-hours", "policies=aladdin"], "is made for placement, placement-p"),
    ("evaluate", ["env=placement", "policies=chiron-tuned"], "chiron is made for mixed-slo, mixed"),
    ("evaluate", ["env=placement", "policies=jsq:workers=0"], "policies: jsq:workers=0: workers"),
    ("train", ["env=burst-multicast", "scenario.fleet.max_gpu=5"], "fleet.max_gpu: there is no"),
    ("train", ["env=burst-multicast", "references=chirn"], "did you mean chiron?"),
    ("evaluate", ["env=burst-multicast", "policies=chirn"], "did you mean chiron?"),
    (
        "evaluate",
        ["env=burst-multicast", "policies=static,runs/no/model.safetensors"],
        "there is no such",
    ),
    ("evaluate", ["env=burst-multicast", "policies=static,static"], "given twice"),
    ("evaluate", ["env=burst-multicast", "episodes=0"], "episodes = '0'"),
    ("pictures", ["run=nowhere"], "no run folder"),
]
PROGRAM = """
import sys
from importlib import import_module

for module, words, _ in {slips!r}:
    print(import_module("agents." + module).main(words), "torch" in sys.modules)
"""


def test_slips_are_answered_in_one_line_before_torch(project_root: Path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(slips=SLIPS)],
        cwd=project_root,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["2 False"] * len(SLIPS), done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(SLIPS)
    for (_, _, said), line in zip(SLIPS, lines, strict=True):
        assert said in line


def test_a_slip_ends_the_command_with_code_2(project_root: Path):
    done = subprocess.run(
        [sys.executable, "-m", "agents.train", "env=burst-multicast", "total_timestep=5"],
        cwd=project_root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "train: unknown option 'total_timestep' (did you mean total_timesteps?)\n"
    )


def test_a_place_that_takes_nothing_is_told_before_the_first_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from agents import evaluate

    monkeypatch.setattr(evaluate, "compare", lambda *_, **__: pytest.fail("episodes begin"))
    (tmp_path / "file").write_text("")
    for out, said in (
        (tmp_path / "file", "is a file, and no folder"),
        (tmp_path / "file" / "below", f"nothing can be written to {tmp_path / 'file' / 'below'} ("),
    ):
        assert evaluate.main(["env=burst-multicast", "policies=static", f"out={out}"]) == 2
        assert capsys.readouterr().err.startswith(f"evaluate: out = {str(out)!r}: {said}")


def test_help_needs_nothing(capsys: pytest.CaptureFixture[str]):
    from agents import evaluate, pictures, train

    for module in (train, evaluate, pictures):
        assert module.main(["--help"]) == 0
        assert "python -m agents." in capsys.readouterr().out
        assert module.main([]) == 2


# ---- statistics ----


def test_interval_holds_the_mean_and_shrinks_with_the_sample(rng: np.random.Generator):
    few, many = rng.normal(5.0, 1.0, 10), rng.normal(5.0, 1.0, 1000)
    for sample in (few, many):
        found = mean_interval(sample)
        assert found.low < found.mean < found.high
        assert found.mean == pytest.approx(sample.mean())
    # The normal approximation's half width is 1.96 / sqrt(n).
    found = mean_interval(many)
    assert found.high - found.low == pytest.approx(2 * 1.96 / np.sqrt(1000), rel=0.15)
    assert mean_interval(few) == mean_interval(few)


def test_intervals_are_those_of_scipy(rng: np.random.Generator):
    """The core has none of SciPy, so the draws and Student's quantiles are written out."""
    from scipy.stats import bootstrap, t

    for n in range(2, 10):
        sample = rng.normal(3.0, 2.0, n)
        half = t.ppf(0.975, n - 1) * sample.std(ddof=1) / n**0.5
        found = mean_interval(sample)
        assert (found.high - found.low) / 2 == pytest.approx(half, rel=1e-12)
    for n in (10, 37, 400):
        sample = rng.normal(3.0, 2.0, n)
        theirs = bootstrap(
            (sample,),
            np.mean,
            n_resamples=10_000,
            method="percentile",
            rng=np.random.default_rng(0),
        )
        wanted = (theirs.confidence_interval.low, theirs.confidence_interval.high)
        found = mean_interval(sample)
        assert (found.low, found.high) == pytest.approx(wanted, rel=1e-12)


def test_interval_of_equal_values_is_that_value():
    assert str(mean_interval([2.0, 2.0, 2.0])) == "2 [2, 2]"
    one = mean_interval([np.nan, 2.0])
    assert one.mean == 2.0
    assert np.isnan([one.low, one.high]).all()
    # Student's t for a few: 12.7 standard errors for two values.
    two = mean_interval([0.0, 2.0])
    assert two.low == pytest.approx(1.0 - 12.7062, abs=1e-3)
    assert np.isnan(mean_interval([]).mean)


def test_pairs_tell_what_means_do_not(rng: np.random.Generator):
    hardness = rng.normal(0.0, 100.0, 30)
    a, b = hardness + 1.0 + rng.normal(0, 0.1, 30), hardness
    assert mean_interval(a).low < mean_interval(b).mean  # the means alone: could be the same
    found = paired_difference(a, b)
    assert 0.9 < found.low < found.high < 1.1
    assert share_better(a, b) == 1.0
    assert share_better(b, b) == 0.5
    with pytest.raises(ValueError, match="same episodes"):
        paired_difference(a, b[:-1])


def test_interquartile_mean_leaves_out_the_outer_quarters():
    assert interquartile_mean([100.0, 1.0, 2.0, 3.0, 4.0, -50.0, 2.0, 3.0]) == 2.5
    assert interquartile_mean([7.0]) == 7.0
    assert interquartile_mean([[1, 2], [3, 40]]) == 2.5  # of the whole table, one cut at each end
    assert interquartile_mean([1.0, 2.0, 9.0]) == 4.0  # a quarter of three, rounded down, is nobody
    assert np.isnan(interquartile_mean([]))


def test_policies_of_other_seeds_are_not_compared():
    rows = [{"policy": "a", "seed": 1, "x": 3.0}, {"policy": "a", "seed": 0, "x": 2.0}]
    assert by_policy(rows, "x")["a"].tolist() == [2.0, 3.0]
    with pytest.raises(ValueError, match="b was not run on the same seeds"):
        by_policy([*rows, {"policy": "b", "seed": 1, "x": 0.0}], "x")


def test_what_a_run_is_compared_on_may_be_another_scenario():
    from agents.configuration.environments import evaluation_scenario, make_scenario

    config = make_config("mixed-slo", {"scenario.fleet.max_gpus": 12})
    trained = make_scenario(config)
    judged = evaluation_scenario(config, trained)
    assert (trained.horizon_s, judged.horizon_s) == (7200, 86_400)
    assert trained.fleet.max_gpus == judged.fleet.max_gpus == 12
    assert judged.workload.day_arrivals[0].days == (11, 12, 13, 14)
    assert trained.workload.day_arrivals[0].days == tuple(range(1, 9))
    own = make_config("burst-multicast", {})
    assert evaluation_scenario(own, trained) is trained


def test_who_learns_on_another_world_is_judged_there(tmp_path: Path):
    from agents.configuration.environments import (
        evaluation_scenario,
        make_scenario,
        validation_scenarios,
    )

    # A field of it changed: the environment's own days, with that change.
    light = make_config("mixed-slo-hours", {"scenario.workload.rate_scale": 0.05})
    trained = make_scenario(light)
    (validated,) = validation_scenarios(light, trained).values()
    judged = evaluation_scenario(light, trained)
    assert [each.workload.rate_scale for each in (validated, judged)] == [0.05, 0.05]
    assert [each.workload.day_arrivals[0].days[0] for each in (validated, judged)] == [9, 11]
    # Another world: that world.
    # The usual one by its name, or another fleet on its load: its days.
    same = make_config("mixed-slo-hours", {"scenario": "mixed-slo-hours"})
    assert same == make_config("mixed-slo-hours", {})
    file = tmp_path / "small.yaml"
    file.write_text("like: mixed-slo-hours\nname: small\nfleet.max_gpus: 8\n")
    small = make_config("mixed-slo-hours", {"scenario": str(file)})
    assert small.validation_workloads == same.validation_workloads
    assert evaluation_scenario(small, make_scenario(small)).fleet.max_gpus == 8
    assert evaluation_scenario(small, make_scenario(small)).workload.day_arrivals[0].days[0] == 11
    for changes in ({"scenario": "mixed-slo-bursty"}, {"scenario.workload": "burstgpt"}):
        config = make_config("mixed-slo-hours", changes)
        own = make_scenario(config)
        assert validation_scenarios(config, own) == {"": own}
        assert evaluation_scenario(config, own) is own
        named = make_config("mixed-slo-hours", {**changes, "evaluation_scenario": "mixed-slo"})
        assert evaluation_scenario(named, own).horizon_s == 86_400


def test_an_environment_like_another_has_its_options():
    day, hours = make_config("mixed-slo", {}), make_config("mixed-slo-hours", {})
    assert hours.hyper == day.hyper
    assert hours.evaluation_scenario == "mixed-slo-hours"


def test_an_unknown_scenario_of_the_comparison_is_a_slip(capsys):
    from agents.train import main

    assert main(["env=mixed-slo", "evaluation_workload=nowhere", "out=unused"]) == 2
    assert "evaluation_scenario, evaluation_workload: workload" in capsys.readouterr().err
