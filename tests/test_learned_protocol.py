"""The protocol's runs and tables, on made-up frames and two short episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pandas import DataFrame

from agents.configuration.config import read_config
from experiments.harness.catalogue import entries, load, matching
from experiments.harness.claims import Verdict
from experiments.learned import study_mixed_slo_v0
from experiments.learned.choices import choose, settings_of
from experiments.learned.family import dropped_in, scenario_of, workloads
from experiments.learned.knobs import HEURISTICS, base_of, turned
from experiments.learned.protocol import ANY_OF_VALIDATION, bound_cases, heuristic_cases, play
from experiments.learned.standings import bounds_of, impossible, standings
from llmscale_env._cli import Slip


def rows_of(
    policy: str, workload: str, split: str, values: dict, learned: bool = False
) -> list[dict]:
    """Rows of made-up episodes; `values`: by setting, (GPU-hours, interactive attainment) by window."""
    return [
        {
            "kind": "policy",
            "policy": policy,
            "setting": setting,
            "base": "defaults",
            "training_seed": seed,
            "learned": learned,
            "workload": workload,
            "split": split,
            "window": window,
            "gpu_hours": hours,
            "interactive_attainment": share,
            "batch_attainment": 1.0,
            "joint_attainment": share,
            "reward": -hours,
            "violations": 100 * (1 - share),
            "rejected": 0,
            "ttft_s_p99": 1.0,
            "itl_s_p99": 0.1,
            "scaling_actions": 3,
        }
        for setting, by_window in values.items()
        for seed in ((0, 1) if learned else (0,))
        for window, (hours, share) in enumerate(by_window)
    ]


def frame(learned_hours: float = 2.0, learned_share: float = 0.995) -> DataFrame:
    """Two settings of a heuristic, one of a learned policy, a bound of 1 on `test-spikes`."""
    cheap, dear = [(4.0, 0.98)] * 3, [(6.0, 1.0)] * 3
    rows = rows_of("chiron", "val-spikes", "validation", {"x1": [(3.5, 0.97)], "x2": [(5.5, 1.0)]})
    rows += rows_of("chiron", "test-spikes", "test", {"x1": cheap, "x2": dear})
    mine = {"as configured": [(learned_hours, learned_share)] * 3}
    rows += rows_of("ppo", "val-spikes", "validation", {"as configured": [(2.0, 0.995)]}, True)
    rows += rows_of("ppo", "test-spikes", "test", mine, True)
    rows += [
        {
            "kind": "bound",
            "workload": "test-spikes",
            "split": "test",
            "window": w,
            "bound_gpu_hours": 1.0,
            "bound_status": "optimal",
        }
        for w in range(3)
    ]
    return DataFrame(rows)


SETTINGS = study_mixed_slo_v0.Settings(workloads=("test-spikes",), resamples=20)


def test_the_names_are_those_of_the_issue():
    names = {entry.name for entry in entries()}
    assert {"learned-mixed-slo-v0", "learned-ablations"} <= names
    assert {e.name for e in matching(["learned"])} >= {"learned-mixed-slo-v0", "learned-window"}


def test_the_setting_is_chosen_in_validation_alone():
    found = choose(frame(), "chiron", "defaults", ("val-spikes",))
    assert (found.settings, found.reaches, found.gpu_hours) == (("x2",), True, 5.5)
    # Whatever the test says: there, x1 is the better one.
    rows = frame()
    good = (rows["workload"] == "test-spikes") & (rows["setting"] == "x1")
    rows.loc[good, "interactive_attainment"] = 1.0
    assert choose(rows, "chiron", "defaults", ("val-spikes",)) == found
    assert standings(rows, {"test-spikes": ("val-spikes",)}, resamples=5)[0].choice == found
    nearest = choose(frame(), "chiron", "defaults", ("val-spikes",), target=1.0 + 1e-6)
    assert (nearest.settings, nearest.reaches) == (("x2",), False)


def test_settings_as_arrays_in_the_order_of_the_rows():
    made = settings_of(frame(), "ppo", "defaults", "test-spikes")
    assert made.gpu_hours.shape == (1, 2, 3)
    assert made.attainment.shape == (1, 2, 2, 3)
    assert made.attainment[0, 0].tolist() == [[0.995] * 3] * 2
    with pytest.raises(ValueError, match="there are no rows"):
        settings_of(frame(), "hpa", "defaults", "test-spikes")


def test_a_policy_with_two_bases_is_refused():
    rows = frame()
    other = rows[rows["policy"] == "ppo"].assign(base="trained on val-mmpp", training_seed=5)
    both = DataFrame([*rows.to_dict("records"), *other.to_dict("records")])
    with pytest.raises(ValueError, match="must be one"):
        standings(both, {"test-spikes": ("val-spikes",)}, resamples=20)


def test_a_standing_by_hand():
    chiron, ppo = standings(frame(), {"test-spikes": ("val-spikes",)}, resamples=20)
    assert chiron.gpu_hours.mean == 6.0  # as chosen
    assert chiron.matched.mean == pytest.approx(5.0)  # half of the windows each
    assert chiron.matched_distance == pytest.approx(5.0)
    assert chiron.distance.mean == 6.0
    assert not chiron.at_edge
    assert (ppo.matched.mean, ppo.at_edge, ppo.learned) == (2.0, True, True)
    assert ppo.others["violations"] == pytest.approx(0.5)
    assert ppo.others["worst_window"] == 0.995


def test_claims_say_who_won():
    better, distance = study_mixed_slo_v0.claims(frame(), SETTINGS)
    assert better.verdict is Verdict.REPRODUCED
    assert better.ours.mean == pytest.approx(3.0)
    assert distance.ours.mean == pytest.approx((2 - 1) / (5 - 1))
    assert distance.verdict is Verdict.REPRODUCED


def test_on_a_smooth_workload_the_mean_difference_decides():
    settings = SETTINGS.model_copy(update={"workloads": ("test-chat",)})
    for hours, verdict, said in (
        (5.0, Verdict.REPRODUCED, ""),
        (5.1, Verdict.NOT, "worse by 2.0 %; the interval does not hold 0"),
    ):
        rows = frame(learned_hours=hours)
        rows["workload"] = rows["workload"].str.replace("spikes", "chat")
        claim = study_mixed_slo_v0.claims(rows, settings)[0]
        assert (claim.verdict, claim.reason) == (verdict, said)
        assert claim.ours.mean == pytest.approx(hours - 5.0, abs=1e-9)
    # Seeds far apart: the interval holds 0.
    rows.loc[(rows["policy"] == "ppo") & (rows["training_seed"] == 1), "gpu_hours"] = 4.0
    rows.loc[(rows["policy"] == "ppo") & (rows["training_seed"] == 0), "gpu_hours"] = 6.4
    claim = study_mixed_slo_v0.claims(rows, settings)[0]
    assert claim.verdict is Verdict.NOT
    assert claim.reason == "worse by 4.0 %; the interval holds 0"


def test_claims_say_who_lost():
    better, distance = study_mixed_slo_v0.claims(frame(learned_hours=7.0), SETTINGS)
    assert better.verdict is Verdict.NOT
    assert distance.ours.mean == pytest.approx(6 / 4)
    assert distance.verdict is Verdict.NOT


def test_a_learned_policy_that_never_reaches_the_target_has_lost():
    better, distance = study_mixed_slo_v0.claims(frame(learned_share=0.97), SETTINGS)
    assert better.verdict is Verdict.NOT
    assert "never 99%; best 97.00 %" in better.reason
    assert distance.verdict is Verdict.NOT
    assert "does not reach the target on test-spikes" in distance.reason


def test_a_loss_on_one_workload_is_not_made_up_for_on_another():
    won, lost = frame(), frame(learned_share=0.97)
    lost["workload"] = lost["workload"].str.replace("spikes", "mmpp")
    settings = SETTINGS.model_copy(update={"workloads": ("test-spikes", "test-mmpp")})
    distance = study_mixed_slo_v0.claims(
        DataFrame([*won.to_dict("records"), *lost.to_dict("records")]), settings
    )[-1]
    assert distance.verdict is Verdict.NOT
    assert "on test-mmpp" in distance.reason


def test_without_a_learned_policy_nothing_is_claimed():
    rows = frame()
    claims = study_mixed_slo_v0.claims(rows[~(rows["policy"] == "ppo")], SETTINGS)
    assert {c.verdict for c in claims} == {Verdict.UNMEASURED}
    assert claims[0].reason == "no learned policy was compared"


def test_a_policy_that_was_trained_on_the_test_says_so():
    rows = frame()
    rows.loc[rows["policy"] == "ppo", "base"] = "leaks mixed-slo-v0/test-spikes"
    assert "Not a fair test" in study_mixed_slo_v0.claims(rows, SETTINGS)[0].note


def test_the_judged_policy_is_one_that_has_not_seen_the_test():
    rows = frame()
    better = rows[rows["policy"] == "ppo"].assign(
        policy="seen", base="leaks mixed-slo-v0", gpu_hours=1.5
    )
    both = DataFrame([*rows.to_dict("records"), *better.to_dict("records")])
    claim = study_mixed_slo_v0.claims(both, SETTINGS)[0]
    assert claim.note.startswith("Learned: ppo, as configured, 2 ")
    assert "Not a fair test" not in claim.note


def test_tables_and_pictures_of_all_kinds_of_rows():
    rows = frame(learned_share=0.97)
    made = study_mixed_slo_v0.tables(rows, SETTINGS)
    assert made["workloads"][1]["matched GPU-h"] == "never 99%; best 97.00 %"
    row = made["overall"][1]
    assert row["P(better reward than chiron)"].mean == 1.0  # reward -2 against -6
    assert row["reward above chiron %, IQM"].mean == pytest.approx(100 * 4 / 6)
    assert made["workloads"][0]["seed by seed"] == "-"
    assert made["workloads"][1]["seed by seed"] == "0 of 2"
    assert set(study_mixed_slo_v0.plot(rows, SETTINGS)) == {"pareto", "matched", "distance"}


def test_without_bounds_there_are_tables_and_claims_all_the_same():
    rows = frame()
    rows = rows[rows["kind"] == "policy"].drop(columns="bound_gpu_hours")
    settings = SETTINGS.model_copy(update={"bound": False})
    better, distance = study_mixed_slo_v0.claims(rows, settings)
    assert better.verdict is Verdict.REPRODUCED
    assert distance.verdict is Verdict.UNMEASURED
    made = study_mixed_slo_v0.tables(rows, settings)
    assert np.isnan(made["workloads"][0]["over bound"])
    assert set(study_mixed_slo_v0.plot(rows, settings)) == {"pareto", "matched"}


# ---------------------------------------------------------------- settings and cases


@pytest.mark.parametrize("policy", HEURISTICS)
def test_every_knob_turns(policy: str):
    scenario = scenario_of("mixed-slo-v0/test-chat")
    for workload in ("val-code", "val-chat", None):
        base = base_of(policy, workload).parameters
        made = [turned(policy, base, factor, scenario) for factor in (0.35, 0.7, 1.0, 1.4, 3.0)]
        assert all(m is not None for m in made)
        assert made[2] != made[3]


def test_a_knob_asks_for_a_larger_fleet():
    scenario = scenario_of("mixed-slo-v0/test-chat")
    assert turned("kpa", {"target": 70.0}, 2.0, scenario) == {"target": 35.0}
    assert turned("dynamo", {}, 2.0, scenario) == {"margin": 2.0}
    # 1.2 is no share, and the range about it ends at 1.
    made = turned("chiron", {"theta": 0.6, "delta": 0.1}, 0.5, scenario)
    assert made == {"theta": 0.999, "delta": pytest.approx(0.999 * 0.001)}
    made = turned("chiron", {"theta": 0.6, "delta": 0.3}, 0.8, scenario)
    assert made == {"theta": pytest.approx(0.75), "delta": pytest.approx(0.999 * 0.25)}
    # A larger fleet for paced is one of mixed instances: the number of others stays.
    made = turned("paced", {"margin": 0.6, "own_share": 0.5}, 2.0, scenario)
    assert made == {"margin": 1.2, "peak_margin": 2.4, "spare": 1.0, "own_share": 0.25}
    made = turned("paced", {"own_share": 0.8}, 0.5, scenario)
    assert made is not None
    assert made["own_share"] == 1.0
    fleet = {"interactive": 6, "mixed": 0, "batch": 2, "batch_limit": 64}
    assert turned("static", fleet, 1.5, scenario) == {
        "interactive": 9,
        "mixed": 0,
        "batch": 3,
        "batch_limit": 64,
    }
    # No more than 16 GPUs, in proportion.
    assert turned("static", fleet, 4.0, scenario) == {
        "interactive": 12,
        "mixed": 0,
        "batch": 4,
        "batch_limit": 64,
    }


def test_the_table_says_where_a_setting_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from baselines import tuned_settings
    from experiments.learned import knobs

    def path_in(policy: str, scenario: str, workload: str | None = None) -> Path:
        return tuned_settings.__dict__["settings_path"](policy, scenario, workload, tmp_path)

    def read_in(policy: str, scenario: str, workload: str | None = None) -> dict:
        return tuned_settings.read_settings(policy, scenario, path_in(policy, scenario, workload))

    monkeypatch.setattr(knobs, "settings_path", path_in)
    monkeypatch.setattr(knobs, "read_settings", read_in)
    assert base_of("kpa", "val-code").source == "defaults"
    (tmp_path / "kpa_mixed-slo-v0.yaml").write_text("workload: a,b\nparameters: {target: 9}\n")
    assert base_of("kpa", "val-code") == knobs.Base("tuned on a,b", {"target": 9})
    (tmp_path / "kpa_mixed-slo-v0_mixed-slo-v0-val-code.yaml").write_text(
        "parameters: {target: 5}\n"
    )
    assert base_of("kpa", "val-code") == knobs.Base("tuned on val-code", {"target": 5})
    assert base_of("kpa").parameters == {"target": 9}


def test_all_policies_meet_the_same_windows_and_validation_has_its_own():
    tests = [w for w in workloads("test") if w.name in ("test-code", "test-mmpp")]
    made = heuristic_cases(
        ("hpa", "kpa"), (0.7, 1.0), tests, workloads("validation"), {"test": 3, "validation": 2}
    )
    assert len(made) == 2 * 2 * 4
    windows = {case["workload"]: tuple(case["windows"]) for case in made}
    assert windows["test-code"] == windows["test-mmpp"] == (30000, 30001, 30002)
    assert windows["val-code"] == windows["val-mmpp"] == (40000, 40001)
    assert {case["workload"] for case in made} == {"test-code", "val-code", "test-mmpp", "val-mmpp"}
    bounds = bound_cases(tests, 3, 0.99, 30.0)
    assert [case["kind"] for case in bounds] == ["bound"] * 18
    assert {case["attainment"] for case in bounds} == {0.99, 0.985, 0.98}


def test_a_larger_table_has_the_runs_of_a_smaller_one():
    tests = [w for w in workloads("test") if w.name == "test-mmpp"]

    def made(windows: int) -> list[dict]:
        return heuristic_cases(("hpa",), (1.0,), tests, (), {"test": windows, "validation": 1})

    (small,) = made(20)
    first, second, third = made(45)
    assert first == small
    assert first["windows"] + second["windows"] + third["windows"] == list(range(30000, 30045))
    # And so has one that leaves out the windows of the smaller one.
    windows = {"test": 20, "validation": 1}
    assert heuristic_cases(("hpa",), (1.0,), tests, (), windows, 20) == [second]
    assert [c["seed"] for c in bound_cases(tests, 2, 0.99, 30.0, 20)] == [30020] * 3 + [30021] * 3


def test_where_the_target_is_impossible_the_bound_is_of_less():
    def row(window: int, attainment: float, hours: float | None) -> dict:
        where = {"kind": "bound", "workload": "w", "window": window}
        status = "infeasible" if hours is None else "optimal"
        return {**where, "attainment": attainment, "bound_gpu_hours": hours, "bound_status": status}

    rows = [row(0, 0.99, 2.0), row(0, 0.985, 1.9), row(1, 0.99, None), row(1, 0.98, 1.7)]
    rows += [row(1, 0.985, 1.8), row(2, 0.985, None), row(2, 0.99, None)]
    assert bounds_of(DataFrame(rows), "w") == {
        0: 2.0,
        1: 1.8,
        2: pytest.approx(np.nan, nan_ok=True),
    }
    assert impossible(DataFrame(rows), "w") == [1, 2]
    assert impossible(DataFrame(rows[:2]), "w") == []


TRACE = "arrival_time_s,input_tokens,output_tokens\n" + "".join(
    f"{k * 0.5},{100 + k % 7},{20 + k % 5}\n" for k in range(4000)
)


def test_a_trace_that_nobody_has_seen_is_one_more_workload(tmp_path: Path):
    path = tmp_path / "mine.csv"
    path.write_text(TRACE)
    settings = load(matching(["learned-mixed-slo-v0"])[0]).settings(
        "quick", {"workload.trace": str(path), "trace.rate_per_s": "4", "learned": ""}
    )
    made = study_mixed_slo_v0.cases(settings)
    mine = [case for case in made if case["workload"] == "trace"]
    assert {case["kind"] for case in mine} == {"policy", "bound"}
    assert {len(case["content"]) for case in mine} == {16}
    # Its settings are chosen on all of validation.
    validated = {c["workload"] for c in made if c["split"] == "validation"}
    assert validated == {w.name for w in workloads("validation")}
    # What was tuned on a workload of validation is a setting of the policy, on the trace and on all of them.
    fleets = [case for case in made if case.get("policy") == "static"]
    assert {c["base"] for c in fleets if c["workload"] == "trace"} == {ANY_OF_VALIDATION}
    several = {c["setting"]: c["parameters"] for c in fleets if c["base"] == ANY_OF_VALIDATION}
    assert {s.partition(",")[0] for s in several} == {f"tuned on {name}" for name in validated}
    for setting in several:
        on = [c["workload"] for c in fleets if c["setting"] == setting]
        assert sorted(on) == sorted(["trace", *validated])
    # Other content, another case: a cached run of the old file is not taken.
    path.write_text(TRACE + "2000.0,1,1\n")
    again = [case for case in study_mixed_slo_v0.cases(settings) if case["workload"] == "trace"]
    assert again[0]["content"] != mine[0]["content"]


def test_a_quick_table_with_a_trace_has_one_network_per_workload(tmp_path: Path):
    path = tmp_path / "mine.csv"
    path.write_text(TRACE)
    experiment = load(matching(["learned-mixed-slo-v0"])[0])

    def networks(scale: str, **more: str) -> dict[str, set[str]]:
        """Models that run, by test workload; those that have seen the test left aside."""
        options = {"workloads": "test-chat,test-spikes", "policies": "", "bound": "false", **more}
        found: dict[str, set[str]] = {}
        for case in study_mixed_slo_v0.cases(experiment.settings(scale, options)):
            if case["split"] == "test" and "leaks" not in case["base"]:
                found.setdefault(case["workload"], set()).add(case["model"])
        return found

    trace = {"workload.trace": str(path)}
    quick, every = networks("quick", **trace), networks("paper", **trace)
    alone = networks("quick")
    assert {name: len(models) for name, models in quick.items()} == {
        "test-chat": 1,
        "test-spikes": 1,
        "trace": len(workloads("validation")),
    }
    # One price and one seed for all of them.
    assert len({read_config(Path(m).parent).lagrangian.start for m in quick["trace"]}) == 1
    assert {read_config(Path(m).parent).seed for m in quick["trace"]} == {0}
    # Without a trace, at scale=paper, or where it is asked for, all compete.
    assert all(len(models) >= 10 for models in alone.values())
    assert {name: every[name] for name in alone} == alone
    assert len(every["trace"]) >= 50
    assert networks("quick", **trace, **{"trace.all_networks": "true"}) == every


def test_a_dropped_in_trace_has_the_rate_that_is_asked_for(tmp_path: Path):
    from llmscale_env.control.reward import draw_requests

    path = tmp_path / "mine.csv"
    path.write_text(TRACE)
    for rate, expected in ((None, 2.0), (6.0, 6.0)):
        scenario = scenario_of(dropped_in(str(path), rate).data)
        requests = draw_requests(scenario, np.random.default_rng(0))
        interactive = (requests.slo_class == 0).sum()
        assert interactive / 1800 == pytest.approx(expected, rel=0.05)
        assert (requests.slo_class == 1).sum() > 7000  # documents, and the queue
    with pytest.raises(ValueError, match="no such file"):
        dropped_in(str(tmp_path / "other.csv"), None)
    path.write_text(TRACE.replace("input_tokens", "prompt"))
    with pytest.raises(ValueError, match=r"workload.trace = .*mine.csv"):
        dropped_in(str(path), None)
    path.write_text("".join(line + "\n" for line in TRACE.splitlines()[:3000]))
    with pytest.raises(ValueError, match=r"is 1499.5 s long; must be at least an episode, 1800 s"):
        dropped_in(str(path), None)


def test_slips_of_parameters_are_named():
    experiment = load(matching(["learned-mixed-slo-v0"])[0])
    for changes, said in (
        ({"workloads": "test-nothing"}, "test-nothing"),
        ({"policies": "chirno"}, "chirno"),
        ({"workload.tracer": "x"}, "did you mean"),
    ):
        with pytest.raises(Slip, match=said):
            experiment.settings("quick", changes)


def test_an_episode_and_a_bound_as_rows():
    short = {"horizon_s": 60.0, "workload.batch_queues.overnight.at_s": 10.0}
    workload = next(w for w in workloads("test") if w.name == "test-mmpp")
    windows = {"test": 2, "validation": 1}
    (case,) = heuristic_cases(("static",), (1.0,), [workload], (), windows)
    case = {**case, "parameters": {"each": 2}, "overrides": short}
    first, second = play(case)
    assert (first["window"], second["window"]) == (30000, 30001)
    # Two instances in each of the three pools for a minute; what leaves at the start is idle.
    assert first["gpu_hours"] == pytest.approx(6 / 60, abs=0.01)
    assert first["reward"] != second["reward"]
    bound = bound_cases([workload], 1, 0.5, 30.0)[0]
    (row,) = play({**bound, "overrides": short})
    assert 0 < row["bound_gpu_hours"] < first["gpu_hours"]


# ---------------------------------------------------------------- the studies beside it


@pytest.mark.parametrize(
    "name, changes, said",
    [
        ("learned-window", {"workload": "spikes"}, "spikes"),
        ("learned-window", {"heuristics": "chirno"}, "chirno"),
        ("learned-window", {"heuristics": "paced:-1"}, "must be a number above 0"),
        ("learned-window", {"heuristics": "paced,paced"}, "is given twice"),
        ("learned-window", {"from_s": "50", "until_s": "40"}, "must be above from_s"),
        ("learned-ablations", {"workloads": "spikes"}, "spikes"),
        ("learned-ablations", {"policies": "chirno"}, "chirno"),
        ("learned-hindsight", {"slot_control_s": "0.001"}, "3 to 1000 slots"),
        ("learned-hindsight", {"slot_control_s": "1000"}, "3 to 1000 slots"),
    ],
)
def test_slips_of_the_other_studies(name: str, changes: dict[str, str], said: str):
    (entry,) = (entry for entry in matching([name]) if entry.name == name)
    with pytest.raises(Slip, match=said):
        load(entry).settings("quick", changes)
