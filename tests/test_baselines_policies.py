"""Reference policies on short episodes: all keep to the contract, each does what its paper says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from baselines import POLICY_NAMES, PolicyError, make_policy, policies_for
from baselines.hpa import HpaPolicy
from baselines.make import TUNED_NAMES
from baselines.parameters import split_policies
from baselines.tuned_settings import read_settings, settings_path
from llmscale_env.control.command import Command
from llmscale_env.control.policy import Policy
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from tests.small_fleets import A_QUARTER, TUESDAY
from tests.small_tables import requests_of
from tests.small_world import SMALL_WORLD

UNTUNED = [
    name
    for name in TUNED_NAMES
    if not settings_path(name.removesuffix("-tuned"), "mixed-slo-hours").exists()
]


@pytest.fixture(scope="module")
def short():
    return load_scenario(
        SMALL_WORLD,
        horizon_s=150,
        impossible_commands="error",  # an order that would be clipped fails the test
        **{
            "workload.batch_queues.overnight.at_s": 40,
            "workload.batch_queues.overnight.n_requests": 500,
        },
    )


@pytest.fixture(scope="module")
def crowded(short):
    """So many requests at once that batches reach every limit."""
    return load_scenario(short, **{"workload.batch_queues.overnight.n_requests": 1500})


@pytest.fixture(scope="module")
def queues():
    return load_scenario(
        "qlm-multi",
        horizon_s=150,
        impossible_commands="error",
        **{
            "workload.rate_scale": 1.5,
            # Requests of both classes for one LLM: otherwise a queue per class is a queue per LLM.
            "workload.streams.batch-2-vicuna.llm": "llama-2-70b@a",
        },
    )


@pytest.fixture(scope="module")
def placed():
    return load_scenario(
        "aladdin-13b-a100",
        horizon_s=60,
        impossible_commands="error",
        **{"workload.streams.chat.rate_per_s": 9.0},
    )


@pytest.fixture(scope="module")
def flowing():
    return load_scenario(
        "blitzscale-azure-code-7b",
        horizon_s=60,
        impossible_commands="error",
        **{"fleet.host_cache": "always", "fleet.host_keep_alive_s": 20},
    )


@pytest.fixture(scope="module")
def regional():
    made = load_scenario(
        "multi-region",
        horizon_s=10_800,
        history_s=10_800,
        impossible_commands="error",
        # History from Monday noon on: the load falls, which lt-ua goes by and lt-u does not.
        **{**A_QUARTER, **dict.fromkeys(TUESDAY, 43_200.0)},
    )
    # The settings that ship are for the whole fleet.
    return made.model_copy(update={"name": "few-vms"})


@pytest.fixture(scope="module")
def siloed():
    return load_scenario(
        "sageserve-siloed-day",
        horizon_s=3600,
        history_s=3600,
        impossible_commands="error",
        **{"workload.rate_scale": 0.05},
    )


@pytest.fixture(scope="module")
def tuned():
    """A world for which policies are tuned; the others run elsewhere."""
    return load_scenario("mixed-slo-hours", horizon_s=300, impossible_commands="error")


@pytest.fixture(scope="module")
def results(crowded, queues, placed, flowing, regional, siloed, tuned):
    return {
        name: run_episode(make_policy(name), made, seed=3)
        for made in (regional, siloed, flowing, placed, crowded, queues, tuned)
        for name in policies_for(made)
        if made is not tuned or name in TUNED_NAMES
    }


@pytest.mark.parametrize("name", [n for n in POLICY_NAMES if n not in UNTUNED])
def test_every_policy_keeps_to_the_contract(
    name, crowded, queues, placed, flowing, regional, siloed, tuned, results
):
    policy = make_policy(name)
    scenarios = (crowded, queues, placed, flowing, regional, siloed, tuned)
    made = next(s for s in scenarios if name in policies_for(s))
    assert isinstance(policy, Policy)
    assert policy.name == name
    again = run_episode(policy, made, seed=3)
    first = results[name]
    assert again.decisions == first.decisions  # the same, and a second episode starts from nothing
    assert again.summary["reward"] == first.summary["reward"]
    assert first.summary["clipped"] == 0
    held = sum(
        first.series[f"{pool.name}/{state}"] * pool.tp
        for pool in made.fleet.pools
        for state in ("acquiring", "loading", "active", "draining")
    )
    assert held.max() <= made.fleet.max_gpus
    assert (first.series[f"{made.classes[0].name}/finished"].sum()) > 0


def test_policies_differ(results):
    rewards = {name: result.summary["reward"] for name, result in results.items()}
    plain = [round(reward, 6) for name, reward in rewards.items() if name not in TUNED_NAMES]
    assert len(set(plain)) == len(plain)


# ---- names and parameters ----


@pytest.mark.parametrize(
    "text, message",
    [
        ("chirron", r"policy = 'chirron' is unknown \(did you mean chiron\?\)"),
        ("", "policy = '' is unknown; there are"),
        ("static:name=x", "static: name = 'x': the whole text is the policy's name"),
        ("chiron:thta=0.3", r"there is no parameter 'thta' \(did you mean theta\?\)"),
        ("chiron:theta=1.5", "theta = '1.5': Input should be less than 1"),
        ("chiron:theta=0.3,delta=0.4", "theta - delta must be above 0"),
        ("chiron:theta=nan", "theta"),
        ("chiron:theta", "'theta' must be key=value"),
        ("chiron:theta=0.3,theta=0.4", "theta is given twice"),
        ("llumnix:low=0.9,high=0.5", "low = 0.9: must be less than high = 0.5"),
        ("hpa:queue_target=none,kv_target=none", "must be given; all are None"),
        ("hpa:up_factor=1", "up_factor = 1.0: must be more than 1"),
        ("static:interactive=many", "interactive = 'many'"),
    ],
)
def test_slips_are_told_in_one_line(text, message):
    with pytest.raises(PolicyError, match=message) as error:
        make_policy(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("static:nowhere=3", "'nowhere' is neither a parameter nor a pool"),
        ("static:interactive=12,mixed=8", "take 20 GPUs, the fleet has 16"),
        ("static:interactive=17", "interactive = 17: must be at most 16"),
        ("static:batch_limit=2000", "interactive.batch_limit = 2000: must be at most 1024"),
        ("llumnix:batch_limit=2000", "must be at most 1024, max_batch of pool 'interactive'"),
        ("llumnix-tuned:settings=nowhere.yaml", "python -m baselines.tune policy=llumnix"),
    ],
)
def test_what_the_scenario_cannot_do_is_told_at_reset(text, message, short):
    with pytest.raises(PolicyError, match=message):
        make_policy(text).reset(short, 0)


def test_scenarios_that_a_policy_cannot_run(short):
    routes = [r.model_dump() for r in short.fleet.routes]
    routes[1]["pools"] = ["batch"]
    apart = load_scenario(short, **{"fleet.routes": routes})
    with pytest.raises(PolicyError, match="stands in `pools` of every class's route"):
        make_policy("llumnix").reset(apart, 0)
    general = load_scenario(short, **{"fleet.pools.mixed.role": "general"})
    with pytest.raises(PolicyError, match="needs a pool of role 'mixed'"):
        make_policy("chiron").reset(general, 0)


def test_parameters_by_keyword_and_by_text_are_the_same(short):
    text = make_policy("static:interactive=3+mixed=2+mixed.batch_limit=96")
    words = make_policy("static", interactive=3, mixed=2, **{"mixed.batch_limit": 96})
    assert text.parameters == words.parameters
    assert text.name == "static:interactive=3+mixed=2+mixed.batch_limit=96"


# ---- static ----


def test_static_gives_its_orders_once(short):
    result = run_episode(make_policy("static:interactive=5,batch=1,batch_limit=48"), short, seed=1)
    assert result.decisions[0]["targets"] == {"interactive": 5, "mixed": 4, "batch": 1}
    assert all("targets" not in d for d in result.decisions[1:])
    assert result.series["interactive/active"].iloc[-1] == 5
    assert result.series["interactive/batch_limit"].iloc[-1] == 48


def test_static_gives_every_pool_so_many_and_named_ones_theirs(short):
    policy = make_policy("static:each=2+interactive=3")
    policy.reset(short, 0)
    assert policy._orders.targets == {"interactive": 3, "mixed": 2, "batch": 2}
    with pytest.raises(PolicyError, match="interactive = 9999: must be at most"):
        make_policy("static", each=9999).reset(short, 0)


def test_static_holds_endpoints_that_would_scale_by_themselves():
    few = {**A_QUARTER, "workload.rate_scale": 0.005}
    scenario = load_scenario("multi-region", horizon_s=7200, **few)
    result = run_episode(make_policy("static:each=6"), scenario, seed=0)
    names = [pool.name for pool in scenario.fleet.pools]
    assert [result.series[f"{name}/active"].iloc[-1] for name in names] == [6] * 6
    assert result.summary["gpu_hours"] == pytest.approx(2 * 288, rel=0.02)
    # Hardly used, they would go down to one of six by themselves.
    left = run_episode(make_policy("reactive"), scenario, seed=0)
    assert [left.series[f"{name}/active"].iloc[-1] for name in names] != [6] * 6


# ---- Llumnix ----


def test_llumnix_serves_all_classes_from_one_pool_one_instance_at_a_time(short, results):
    result = results["llumnix"]
    assert result.decisions[0]["targets"] == {"interactive": 8, "mixed": 0, "batch": 0}
    assert result.series["queue/batch"].max() == 0  # it does not queue batch requests
    counts = result.series["interactive/acquiring"] + result.series["interactive/loading"]
    counts = (counts + result.series["interactive/active"]).to_numpy()
    assert set(np.abs(np.diff(counts))) <= {0, 1}
    assert counts.min() >= 1


def test_by_class_a_rule_sizes_the_pool_in_which_interactive_requests_come_first(short):
    policy = make_policy("hpa:serving=by-class,batch_limit=24")
    result = run_episode(policy, short, 3)
    assert result.decisions[0]["targets"] == {"interactive": 0, "mixed": 8, "batch": 0}
    assert result.series["queue/batch"].max() > 100  # batch requests wait in the scenario's queue
    assert set(result.requests["instance"].dropna()) <= set(range(16, 32))  # the mixed pool's slots
    assert result.summary["interactive/slo_attainment"] > 0.9
    # Without overflow no pool serves both classes by the routes.
    apart = load_scenario(
        short, **{"fleet.routes.0.overflow": [], "fleet.routes.1.pools": ["batch"]}
    )
    with pytest.raises(PolicyError, match=r"serving = 'by-class': no pool of llama-3\.1-8b"):
        make_policy("hpa:serving=by-class").reset(apart, 0)


def test_llumnix_keeps_utilisation_in_its_range(short):
    # 300 requests of 3000 tokens that stay for the episode: 900000 tokens and what they emit. An
    # instance holds some 450000, so 0.4 to 0.6 is held by 4 or 5 instances.
    requests = requests_of(short, np.linspace(0, 20, 300), 3000, 4000)
    policy = make_policy("llumnix", low=0.4, high=0.6, initial=1)
    result = run_episode(policy, load_scenario(short, horizon_s=140.0), requests=requests)
    counts = result.series["interactive/active"]
    assert counts.iloc[0] == 1
    assert counts.iloc[-1] in (4, 5)
    assert result.series["interactive/acquiring"].max() + counts.max() <= 6  # no overshoot


def test_llumnix_64_runs_sixty_four_requests_at_a_time(short):
    # By hand: 100 requests at once on the one instance that there is. 100 x (500 + 4000) tokens would fit
    # in its memory at the beginning. None ends within 60 s (4000 tokens take longer), so that with a
    # limit of 64 there are 36 left waiting, and with 256 none.
    requests = requests_of(short, np.full(100, 1.0), 500, 4000)
    scenario = load_scenario(short, horizon_s=60.0)
    only = {"initial": 1, "high": 50.0, "rebalance": False}  # no second instance
    running, waiting = {}, {}
    for name in ("llumnix", "llumnix-64"):
        series = run_episode(make_policy(name, **only), scenario, requests=requests).series
        running[name] = series["interactive/running"].iloc[-1]
        waiting[name] = series["interactive/waiting"].iloc[-1]
    assert running == {"llumnix": 100, "llumnix-64": 64}
    assert waiting == {"llumnix": 0, "llumnix-64": 36}


def test_llumnix_64_is_llumnix_but_for_the_limit():
    plain, limited = make_policy("llumnix"), make_policy("llumnix-64")
    assert limited.name == "llumnix-64"
    assert limited.parameters == plain.parameters.model_copy(update={"batch_limit": 64})
    changed = make_policy("llumnix-64:high=0.3,batch_limit=32").parameters
    assert (changed.high, changed.batch_limit) == (0.3, 32)


# ---- HPA ----


def test_hpa_scales_up_at_once_and_down_after_the_window(short):
    scenario = load_scenario(short, horizon_s=500.0)
    arrivals = np.concatenate([np.full(600, 30.0), np.arange(100, 490, 1.0)])
    requests = requests_of(scenario, arrivals, 500, 200)
    policy = make_policy("hpa", batch_limit=16, initial=2)
    result = run_episode(policy, scenario, requests=requests)
    counts = sum(
        result.series[f"interactive/{s}"] for s in ("acquiring", "loading", "active")
    ).to_numpy()
    times = result.series["time_s"].to_numpy()
    top = counts.max()
    assert top >= 4
    first = times[counts.argmax()]
    assert first <= 80
    # One step a sync: twice as many or four more. Loading instances are not ordered twice.
    assert all(b <= max(2 * a, a + 4) for a, b in itertools.pairwise(counts))
    last_high = times[np.flatnonzero(counts == top)[-1]]
    assert last_high >= first + 280
    assert counts[-1] < top


def test_hpa_may_fall_to_the_least_in_one_step(short):
    scenario = load_scenario(short, horizon_s=200.0)
    requests = requests_of(scenario, np.array([100.0]), 500, 200)
    literal = {"up_count": 0, "down_factor": 0.5}

    def falls(**values):
        policy = make_policy("hpa", batch_limit=16, initial=8, down_window_s=30.0, **values)
        result = run_episode(policy, scenario, requests=requests)
        counts = sum(
            result.series[f"interactive/{s}"] for s in ("acquiring", "loading", "active")
        ).to_numpy()
        return [int(b) for a, b in itertools.pairwise(counts) if b != a]

    assert falls() == [1]
    assert falls(**literal) == [4, 2, 1]


def test_hpa_forgets_the_last_episode(short):
    policy = HpaPolicy(batch_limit=16)
    first = run_episode(policy, short, seed=5)
    assert run_episode(policy, short, seed=5).decisions == first.decisions


# ---- Chiron ----


def test_chiron_queues_batch_requests_and_adds_instances_only_when_they_get_late(short):
    scenario = load_scenario(short, horizon_s=300.0)
    policy = make_policy("chiron", batch_limit=64, controller="fixed", measured_weight=0)
    relaxed = requests_of(scenario, np.full(1500, 20.0), 300, 300, "batch")
    result = run_episode(policy, scenario, requests=relaxed)
    # 1200 s are left, and mixed instances need a fraction of that.
    assert result.series["batch/active"].max() == 0
    assert result.series["queue/batch"].max() > 500

    classes = [c.model_dump() for c in scenario.classes]
    classes[1]["ttft_s"] = 60.0
    tight = load_scenario(scenario, classes=classes)
    result = run_episode(policy, tight, requests=relaxed)
    up = [d for d in result.decisions if d.get("targets", {}).get("batch", 0) > 0]
    assert up
    # One mixed instance is left, which makes some 3600 tokens/s of the 450000 in 50 s; instances
    # ordered now make as many in the 34 s that follow their loading: three more suffice.
    assert (up[0]["time_s"], up[0]["targets"]["batch"]) == (30.0, 3)
    assert "BBP 1" in up[0]["reason"]
    down = [d for d in result.decisions if d.get("targets", {}).get("batch") == 0]
    assert len(down) == 1  # all retired at once, when nothing is left
    assert result.series["batch/active"].iloc[-1] == 0
    assert result.summary["batch/slo_attainment"] > 0.95


@pytest.mark.parametrize("controller", ["fixed", "chiron"])
def test_chiron_follows_the_interactive_load(short, controller):
    # 60 requests run at any time: with limits of 32, two instances' worth, so six in all. Limits that
    # the local autoscaler raises do not change that.
    requests = requests_of(short, np.arange(0, 145, 0.1), 100, 400)
    policy = make_policy("chiron", batch_limit=32, controller=controller, window_s=0)
    result = run_episode(policy, short, requests=requests)
    raised = result.series["interactive/batch_limit"].iloc[-1] > 32
    assert raised == (controller == "chiron")
    running = (result.series["interactive/running"] + result.series["mixed/running"]).iloc[-5:]
    total = (result.series["interactive/active"] + result.series["mixed/active"]).iloc[-5:]
    ibp = (running / 32 / total).mean()
    assert 1 / 3 - 0.1 <= ibp <= 1 / 3 + 0.1


def test_an_instance_without_room_counts_as_one(short):
    """Six prompts of 4,000 tokens on two instances: one each is prefilled first, and the others wait."""
    scenario = load_scenario(short, control_interval_s=0.25)
    policy = make_policy("chiron", controller="fixed")
    found = {}

    class Looks:
        name = "looks"

        def reset(self, scenario, seed):
            policy.reset(scenario, seed)

        def act(self, view):
            (fleet,) = policy._fleets
            found[round(view.time_s, 2)] = policy.running(view, fleet)
            one_each = {"interactive": 1, "mixed": 1, "batch": 0}
            return Command(targets=one_each if view.step == 0 else {})

    run_episode(Looks(), scenario, requests=requests_of(scenario, [10.0] * 6, 4000, 400))
    # At 10.25 a prompt is prefilled at each instance, and others wait there. Afterwards three decode at each,
    # 3 of 64, and nobody waits.
    assert found[10.25] == 2.0
    assert found[12.0] == pytest.approx(2 * 3 / 64)
    assert found[9.75] == 0.0


def test_chiron_with_chunked_prefill_keeps_interactive_requests_on_time():
    """Limits rise with chunks, where prefill is the bottleneck; the fleet must not shrink for it."""
    chunks = {f"fleet.pools.{name}.chunk_tokens": 512 for name in ("interactive", "mixed", "batch")}
    scenario = load_scenario(SMALL_WORLD, **chunks)
    on_time = [
        run_episode(make_policy("chiron"), scenario, seed).summary["interactive/slo_attainment"]
        for seed in (10_000, 10_001)
    ]
    assert np.mean(on_time) > 0.99


def test_an_idle_fleet_shrinks_to_one_of_each(short):
    requests = requests_of(short, [1.0], 100, 10)
    result = run_episode(make_policy("chiron"), short, requests=requests)
    last = result.series.iloc[-1]
    assert (last["interactive/active"], last["mixed/active"], last["batch/active"]) == (1, 1, 0)
    assert result.decisions[0].get("targets") is None  # before an interval has passed


def test_chiron_sets_the_local_autoscalers(results):
    for name, kind in (("chiron", "chiron"), ("chiron-global", "fixed")):
        assert set(results[name].decisions[0]["controllers"].values()) == {kind}
    assert results["chiron-local"].decisions[0]["controllers"] == {"interactive": "chiron"}


# ---- settings and the twenty lines of the docs ----


def test_tuned_settings_are_those_of_the_file(tuned):
    policy = make_policy("llumnix-tuned")
    policy.reset(tuned, 0)
    found = read_settings("llumnix", "mixed-slo-hours")
    assert policy._inner.parameters.high == found["high"]


def test_the_policy_of_the_docs_runs(short, project_root):
    text = (project_root / "docs" / "policies.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 24
    names: dict[str, object] = {}
    exec(code.split("result = run_episode")[0], names)
    result = run_episode(names["Threshold"](), short, seed=1)
    assert any(decision.get("targets") for decision in result.decisions)
    assert Command(**{k: v for k, v in result.decisions[1].items() if k in ("targets", "reason")})


def test_a_list_of_policies_is_read_as_people_write_it():
    text = "hpa,static:interactive=6,mixed=4,runs/a=b,./x:quantile=0.8,chiron"
    wanted = ["hpa", "static:interactive=6+mixed=4", "runs/a=b", "./x:quantile=0.8", "chiron"]
    assert split_policies(text) == wanted
    assert split_policies("static:interactive=6+mixed=4,hpa,") == [
        "static:interactive=6+mixed=4",
        "hpa",
    ]
    assert split_policies("hpa,mixed=4") == [
        "hpa",
        "mixed=4",
    ]  # of nobody's, and refused by name later
