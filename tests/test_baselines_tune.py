"""The sweep command: what it tries, what it writes, how it answers slips."""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np
import pytest
import yaml

from baselines import POLICY_NAMES, make_policy, policies_for, tune, tuned_settings
from baselines.llumnix import LlumnixPolicy
from baselines.registry import TUNABLE, begins_with, grid_of, settings_of, space_of
from baselines.space import Choice, Real, Whole
from baselines.tune import FIRST_SEED, MAX_SEEDS, Trial, grid_points, main, table_text
from baselines.tuning.halving import plan, seeds_by_round
from baselines.tuning.search import from_optuna
from baselines.tuning.trials import Outcome, Score
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from tests.small_policies import HEURISTICS
from tests.small_world import SMALL_WORLD

SMALL = [
    f"env={SMALL_WORLD}",
    "scenario.horizon_s=60",
    "scenario.workload.batch_queues.overnight.n_requests=100",
]
SMALL += ["scenario.workload.batch_queues.overnight.at_s=10"]
STEPS = 6  # control intervals of such an episode


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(tune, "default_folder", lambda: folder)
    return folder


def test_grid_points_are_settings():
    values = {"high": [0.4], "batch_limit": [64, 128]}
    points = grid_points(LlumnixPolicy, values, load_scenario(SMALL_WORLD))
    assert len(points) == 2 * len(LlumnixPolicy.GRID["low_share"]) * 2
    assert points[0] == {"high": 0.4, "batch_limit": 64, "rebalance": True, "low": 0.1}


def test_tuning_seeds_stay_below_the_evaluations():
    assert FIRST_SEED + MAX_SEEDS <= 10_000


def test_the_best_is_written_with_its_command(tmp_path, capsys):
    out = tmp_path / "best.yaml"
    words = ["policy=llumnix", "seeds=2", "high=0.05,0.9", "low_share=0.5", "batch_limit=64"]
    words += ["rebalance=true", f"out={out}", *SMALL]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "2 settings, 2 seeds each" in printed
    found = yaml.safe_load(out.read_text())
    assert found["seeds"] == "1000..1001"
    assert found["command"] == " ".join(["python -m baselines.tune", *words])
    assert found["parameters"]["high"] in (0.05, 0.9)
    assert list(tmp_path.iterdir()) == [out]
    LlumnixPolicy(**found["parameters"])


def test_nothing_is_written_if_not_asked(tmp_path, capsys):
    out = tmp_path / "best.yaml"
    words = ["policy=llumnix", "seeds=1", "high=0.5", "low_share=0.5", "batch_limit=64"]
    assert main([*words, f"out={out}", "write=false", *SMALL]) == 0
    assert not out.exists()


def test_order_and_table():
    a = Trial({"x": 1}, reward=-5.0, attainment=0.99, gpu_hours=4.0, reward_error=1.0)
    b = Trial({"x": 2}, reward=-6.0, attainment=0.99001, gpu_hours=3.0, reward_error=1.0)
    assert sorted([b, a], key=lambda t: t.key("reward")) == [a, b]
    assert sorted([a, b], key=lambda t: t.key("attainment")) == [b, a]  # a tie, fewer GPU-hours
    assert table_text([a, b], shown=1).splitlines()[-1] == "... and 1 more"


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "policy = '': cannot be tuned; there are"),
        (["policy=no-swap"], "policy = 'no-swap': cannot be tuned; there are"),
        (["policy=hpa", "search=optuna"], "search=optuna needs budget_steps=N"),
        (["policy=hpa", "search=random"], "search = 'random': must be one of"),
        (
            ["policy=hpa", "search=optuna", "budget_steps=100"],
            "budget_steps = '100': must be an integer in 1920..",
        ),
        (
            ["policy=hpa", "search=optuna", "budget_steps=2000", "queue_target=9..x"],
            "must be a range",
        ),
        (["policy=hpa", "attainment=0.9"], "goes with score=gpu-hours"),
        (
            ["policy=hpa", "score=gpu-hours", "attainment=2"],
            "attainment = '2': must be a number above",
        ),
        (["policy=hpa", "workload=spike", "workloads=chat"], "workload and workloads"),
        (["policy=hpa", "workload=spik"], "workload = 'spik'"),
        (
            ["policy=llumnix", "env=mixd-slo"],
            "env = 'mixd-slo': unknown environment (did you mean mixed-slo",
        ),
        (
            ["policy=llumnix", "env=llmscale/MixedSLO-v1"],
            "env = 'llmscale/MixedSLO-v1': is Gymnasium's id; the command line says env=mixed-slo",
        ),
        (["policy=llumnix", "seed=x"], "seed = 'x': must be an integer"),
        (["policy=llumnix", "seeds=0"], "seeds = '0': must be an integer in 1..1000"),
        (["policy=llumnix", "hihg=1"], "unknown argument 'hihg=1'"),
        (["policy=llumnix", "score=best"], "score = 'best': must be one of"),
        (
            ["policy=llumnix", "high=-1"],
            "high = '-1': must be values separated by commas (Input should be",
        ),
        (
            ["policy=llumnix", "high=abc"],
            "high = 'abc': must be values separated by commas (Input should be",
        ),
        (["policy=llumnix", "low_share=x"], "low_share = 'x': must be values separated by commas"),
        (["policy=llumnix", "workloads=chatt"], "workloads = 'chatt'"),
        (["policy=llumnix", "scenario.horizon=3"], "horizon: there is no such field"),
        (["policy=llumnix", "scenario.horizon_s={"], "scenario.horizon_s = '{': cannot be read"),
        (["policy=llumnix", "out=."], "out = '.': is a folder"),
        (["policy=llumnix", "out=/proc/none/x.yaml"], "out = '/proc/none/x.yaml': nothing can be"),
        (["policy=llumnix", "write=maybe"], "write = 'maybe': must be true or false"),
        (["policy=lumnix"], "policy = 'lumnix': cannot be tuned (did you mean llumnix?)"),
    ],
)
def test_slips_end_with_code_2_and_one_line(words, message, refused):
    error = refused(main, words)
    assert message in error
    assert error.startswith("tune: ")


def test_help(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "python -m baselines.tune" in printed
    assert all(name in printed for name in TUNABLE)


# ---- what can be tuned ----


def test_every_heuristic_of_pools_can_be_tuned():
    scenario = load_scenario(SMALL_WORLD)
    plain = {n for n in policies_for(scenario) if not n.endswith("-tuned")}
    # Another one with a setting of its own, and halves of another.
    assert plain - set(TUNABLE) == {"llumnix-64", "chiron-local", "chiron-global"}
    assert all(f"{name}-tuned" in POLICY_NAMES for name in TUNABLE)
    assert "llumnix-tuned" in policies_for(load_scenario("mixed-slo-hours"))
    assert "llumnix-tuned" not in policies_for(load_scenario("chiron-8b"))  # no file


def home_of(name):
    """A scenario that a policy is made for."""
    shipped = (
        *(SMALL_WORLD, "multi-model-queue", "placement", "burst-multicast", "multi-region"),
        "sageserve-siloed-day",
    )
    made = [load_scenario(name) for name in shipped]
    made.append(load_scenario("burst-multicast", **{"fleet.host_cache": "always"}))
    return next(scenario for scenario in made if name in policies_for(scenario))


@pytest.mark.parametrize("name", TUNABLE)
def test_every_point_is_a_setting_that_runs_the_scenario(name):
    scenario, kind = home_of(name), TUNABLE[name]
    space, rng = space_of(kind, scenario), np.random.default_rng(0)
    words = set(tune._WORDS)
    # What `workers` of a placement policy are is searched as a share of the GPUs.
    assert not words & {*space, *grid_of(kind, scenario)}
    assert words & {*kind.parameters_type.model_fields} <= {"workers"}
    points = []
    for which in ("low", "high", "any"):
        for _ in range(20 if which == "any" else 1):
            point = {}
            for key, part in space.items():
                if isinstance(part, Choice):
                    point[key] = part.values[rng.integers(len(part.values))]
                elif which == "any":
                    drawn = rng.uniform(part.low, part.high)
                    point[key] = round(drawn) if isinstance(part, Whole) else float(drawn)
                else:
                    point[key] = getattr(part, which)
            points.append(settings_of(kind, point, scenario))
    if grid_of(kind, scenario):
        points += grid_points(kind, {}, scenario)[::7]
    for settings in points:
        kind(name, **settings).reset(scenario, 0)
        assert yaml.safe_load(yaml.safe_dump(settings)) == settings
        assert json.loads(json.dumps(settings)) == settings


def test_how_classes_are_served_is_searched_where_there_is_a_choice():
    assert "serving" in space_of(TUNABLE["kpa"], load_scenario(SMALL_WORLD))
    assert "serving" not in space_of(TUNABLE["static"], load_scenario(SMALL_WORLD))
    one = load_scenario(
        SMALL_WORLD, **{"fleet.routes.0.overflow": [], "fleet.routes.1.pools": ["batch"]}
    )
    assert "serving" not in space_of(TUNABLE["kpa"], one)


def test_a_static_fleet_never_takes_more_gpus_than_there_are():
    scenario = load_scenario(SMALL_WORLD)
    point = {"interactive": 16, "mixed": 8, "batch": 8, "batch_limit": 64}
    made = settings_of(TUNABLE["static"], point, scenario)
    assert made == {"interactive": 8, "mixed": 4, "batch": 4, "batch_limit": 64}


def test_a_static_fleet_of_the_ranges_is_shared_out_by_hand():
    scenario = load_scenario(SMALL_WORLD)
    point = {"gpus": 10, "interactive.share": 0.8, "mixed.share": 0.0, "batch.share": 0.2}
    made = settings_of(TUNABLE["static"], {**point, "interactive.batch_limit": 32}, scenario)
    assert made == {"interactive": 8, "mixed": 0, "batch": 2, "interactive.batch_limit": 32}
    # 10 thirds: 3.33 each; the GPU left goes to the first. Two thirds and a third: 6.67, 3.33.
    point = {"gpus": 10, "interactive.share": 1.0, "mixed.share": 1.0, "batch.share": 1.0}
    made = settings_of(TUNABLE["static"], point, scenario)
    assert sorted(made.values()) == [3, 3, 4]
    point = {"gpus": 10, "interactive.share": 0.5, "mixed.share": 0.0, "batch.share": 0.25}
    made = settings_of(TUNABLE["static"], point, scenario)
    assert made == {"interactive": 7, "mixed": 0, "batch": 3}
    point = {"gpus": 10, "interactive.share": -0.4, "mixed.share": 0.1, "batch.share": -0.1}
    made = settings_of(TUNABLE["static"], point, scenario)
    assert made == {"interactive": 0, "mixed": 10, "batch": 0}
    point = {"gpus": 9, "interactive.share": -0.4, "mixed.share": 0.0, "batch.share": -0.1}
    assert settings_of(TUNABLE["static"], point, scenario) == dict.fromkeys(made, 3)


def test_a_search_of_static_fleets_begins_with_one_pool():
    scenario = load_scenario(SMALL_WORLD)
    kind = TUNABLE["static"]
    space = space_of(kind, scenario)
    first = begins_with(kind, scenario, space)
    assert len(first) == 16 * 3
    points = from_optuna(space, lambda point: point, lambda trial: 0.0, 0, first[6:8])
    found = [point for point, _ in itertools.islice(points, 4)]
    assert found[0] == {}
    assert found[1:3] == first[6:8]
    assert found[3] not in first
    made = settings_of(kind, first[6], scenario)
    limits = {"interactive.batch_limit": 16, "mixed.batch_limit": 16, "batch.batch_limit": 16}
    assert made == {"interactive": 0, "mixed": 3, "batch": 0, **limits}
    assert begins_with(kind, scenario, {**space, "gpus": Whole(1, 4)}) == []
    assert begins_with(TUNABLE["hpa"], scenario, space) == []
    # Pools of which none serves both classes, or of different models: nothing to begin with.
    assert kind.begins_with(load_scenario("multi-model-queue")) == []


@pytest.mark.parametrize("name", HEURISTICS)
def test_nobody_who_is_tuned_reads_the_forecast(name: str):
    policy = make_policy(name)
    short = load_scenario(SMALL_WORLD, horizon_s=300.0)
    with_one, without = (
        run_episode(policy, short, 3, forecaster=f).summary for f in ("ewma", None)
    )
    assert with_one == without


# ---- budgets ----


def test_rounds_double():
    assert seeds_by_round(8, 2) == [2, 4, 8]
    assert seeds_by_round(7, 2) == [2, 4, 7]
    assert seeds_by_round(1, 2) == [1]


def test_a_plan_spends_what_a_setting_more_would_not_fit_in():
    # n settings with 2 seeds, half with 2 more, a quarter with 4 more: 4 n for multiples of 4.
    assert plan(80, seeds=8, first=2).rounds == ((20, 2), (10, 4), (5, 8))
    assert plan(83, seeds=8, first=2).rounds == ((21, 2), (10, 4), (5, 8))
    assert plan(83, seeds=8, first=2).units == 82
    for units in range(8, 120):
        made = plan(units, seeds=8, first=2)
        spent, before = 0, 0
        for n, seeds in made.rounds:
            spent += n * (seeds - before)
            before = seeds
        assert spent == made.units
        assert units - 1 <= made.units <= units
    with pytest.raises(ValueError, match="units = 7"):
        plan(7, seeds=8, first=2)


def test_a_plan_with_few_settings_spends_less():
    made = plan(1000, seeds=8, first=2, most=5)
    assert made.rounds == ((5, 2), (3, 4), (2, 8))
    assert made.units == 5 * 2 + 3 * 2 + 2 * 4


# ---- scores ----


def outcome(*by_class, gpu_hours=1.0, reward=0.0):
    return Outcome(reward, sum(by_class) / len(by_class), by_class, gpu_hours)


def test_a_trial_is_a_mean_and_its_worst_class_is_of_means():
    made = Trial.of({}, [outcome(1.0, 0.9, reward=-2.0), outcome(0.8, 1.0, reward=-4.0)])
    assert (made.reward, made.episodes) == (-3.0, 2)
    assert made.reward_error == pytest.approx(1.0)
    assert made.worst_class == pytest.approx(0.9)
    assert made.attainment == pytest.approx(0.925)


def test_of_several_scenarios_the_worst_one_counts():
    # Two seeds on two scenarios: the first has 1 and 0.97 in the mean, the second 0.93 and 1.
    outcomes = [outcome(1.0, 0.96), outcome(0.9, 1.0), outcome(1.0, 0.98), outcome(0.96, 1.0)]
    assert Trial.of({}, outcomes, 2).worst_class == pytest.approx(0.93)
    assert Trial.of({}, outcomes).worst_class == pytest.approx(0.965)
    assert Trial.of({}, outcomes[:1], 2).worst_class == 0.96


def test_fewest_gpu_hours_of_those_that_keep_every_class():
    cheap = Trial.of({"x": 1}, [outcome(1.0, 0.97, gpu_hours=1.0)])
    good = Trial.of({"x": 2}, [outcome(0.991, 0.99, gpu_hours=3.0)])
    dear = Trial.of({"x": 3}, [outcome(1.0, 1.0, gpu_hours=4.0)])
    bad = Trial.of({"x": 4}, [outcome(1.0, 0.5, gpu_hours=0.5)])
    score = Score("gpu-hours", 0.99)
    assert sorted([bad, cheap, dear, good], key=score.key) == [good, dear, cheap, bad]
    losses = [score.loss(t, most_gpu_hours=8.0) for t in (good, dear, cheap, bad)]
    assert losses == sorted(losses)
    assert sorted([bad, cheap, dear, good], key=Score("gpu-hours", 0.97).key)[0] == cheap


# ---- searches ----

HALVES = ["policy=keda", "seeds=2", "first_seeds=1", f"budget_steps={20 * STEPS}", *SMALL]


def found_in(capsys):
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("search", ["grid", "optuna"])
def test_a_budget_is_kept_exactly_and_what_was_run_is_not_run_again(search, tmp_path, capsys):
    if search == "optuna":
        pytest.importorskip("optuna")
    out = tmp_path / "keda.yaml"
    words = [*HALVES, f"search={search}", f"out={out}", f"cache={tmp_path / 'kept'}"]
    assert main(words) == 0
    first = found_in(capsys)
    assert "13 settings with 1 seeds, then 7 settings with 2 seeds" in first[0]
    assert f"steps: {20 * STEPS:,} of {20 * STEPS:,}, 0 of them from the cache" in first
    found = yaml.safe_load(out.read_text())
    assert found["steps"] == found["budget_steps"] == 20 * STEPS
    assert found["settings_tried"] == 13
    make_policy("keda", **found["parameters"])

    # Cut off in the middle of a line: what was whole is kept, the rest is run, the answer is the same.
    kept = next((tmp_path / "kept").iterdir())
    lines = kept.read_text().splitlines(keepends=True)
    # A number that somebody has changed is no result either.
    changed = lines[8].replace('"gpu_hours": ', '"gpu_hours": 1')
    assert changed != lines[8]
    kept.write_text("".join(lines[:8]) + changed + lines[9][:20] + "\n")
    assert main(words) == 0
    again = found_in(capsys)
    assert f"steps: {20 * STEPS:,} of {20 * STEPS:,}, {8 * STEPS} of them from the cache" in again
    assert again[1:-2] == first[1:-2]
    assert main(words) == 0
    assert f"{20 * STEPS} of them from the cache" in found_in(capsys)[-2]


def test_defaults_are_among_what_is_tried(tmp_path, capsys):
    words = [*HALVES, "search=grid", "queue_target=0.001", "kv_target=0.9", "batch_limit=1"]
    out = tmp_path / "keda.yaml"
    assert main([*words, f"out={out}"]) == 0
    assert yaml.safe_load(out.read_text())["parameters"] == {}  # worse is all that the grid has
    assert "2 settings with 1 seeds, then 1 settings with 2 seeds" in found_in(capsys)[0]


def test_a_target_that_nothing_keeps_is_told(capsys):
    words = [*HALVES, "score=gpu-hours", "attainment=1", "queue_target=50", "kv_target=0.9"]
    words += ["write=false", "scenario.classes.interactive.ttft_s=0.01"]
    assert main(words) == 0
    assert "no setting keeps every class at 1; the first one comes nearest" in found_in(capsys)


def test_optuna_keeps_to_ranges_and_gives_the_same_again():
    pytest.importorskip("optuna")
    space = {"x": Real(0.01, 100, log=True), "n": Whole(1, 9), "c": Choice((None, "a"))}

    def drawn(seed, n=30):
        seen = []
        for settings, tell in from_optuna(space, dict, lambda t: t.reward, seed):
            seen.append(settings)
            x = settings.get("x", 50.0)
            tell(Trial(settings, (np.log10(x) - 1) ** 2, 1.0, 1.0, 0.0))
            if len(seen) == n:
                return seen

    points = drawn(0)
    assert points[0] == {}
    assert all(0.01 <= p["x"] <= 100 and p["n"] in range(1, 10) for p in points[1:])
    assert drawn(0) == points
    assert drawn(1) != points
    late = [abs(np.log10(p["x"]) - 1) for p in points[15:]]
    early = [abs(np.log10(p["x"]) - 1) for p in points[1:11]]
    assert np.mean(late) < np.mean(early)  # it learns


@pytest.mark.slow
@pytest.mark.parametrize("search", ["grid", "optuna"])
def test_processes_find_the_same(search, tmp_path, capsys):
    if search == "optuna":
        pytest.importorskip("optuna")
    texts, tables = [], []
    for workers in ("1", "2"):
        out = tmp_path / workers
        words = [*HALVES, f"search={search}", f"out={out}", f"workers={workers}"]
        assert main([*words, f"cache={tmp_path / 'kept' / workers}"]) == 0
        tables.append([line for line in found_in(capsys) if "written" not in line])
        content = yaml.safe_load(out.read_text())
        del content["command"]
        texts.append(content)
    assert texts[0] == texts[1]
    assert tables[0] == tables[1]
    one, two = (next((tmp_path / "kept" / w).iterdir()).read_text() for w in ("1", "2"))
    assert sorted(one.splitlines()) == sorted(two.splitlines())


def test_where_it_runs_is_no_part_of_the_command():
    words = ["policy=keda", "workers=2", "launcher=ray", "ray.address=auto", "seeds=2"]
    assert tune._without_where(words) == ["policy=keda", "seeds=2"]


def test_without_optuna_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main([*HALVES, "search=optuna"]) == 2
    error = capsys.readouterr().err
    assert error == "tune: search=optuna needs Optuna: pip install 'llmscale[tune]'\n"


def test_any_tuned_policy_reads_its_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tuned_settings, "FOLDER", tmp_path)
    scenario = load_scenario(SMALL_WORLD)
    file = tmp_path / "keda_small_spike.yaml"
    file.write_text("parameters: {queue_target: 7.5}\n")
    policy = make_policy("keda-tuned:workload=spike", settings=str(file))
    policy.reset(scenario, 0)
    assert policy._inner.parameters.queue_target == 7.5
    over = make_policy("keda-tuned", settings=str(file), queue_target=3)
    over.reset(scenario, 0)
    assert over._inner.parameters.queue_target == 3
    with pytest.raises(ValueError, match="policy=keda env=small workload=chat"):
        make_policy("keda-tuned:workload=chat").reset(scenario, 0)
