"""What starting an instance takes: composed by hand, against logs, and in both engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from baselines import make_policy
from baselines.clairvoyant.bound import soonest_ps
from llmscale_env import cards as cards_command
from llmscale_env.cluster.cards import gpu_card, llm_card
from llmscale_env.cluster.loading import (
    PHASES,
    START_SOURCES,
    NetworkConfig,
    StartConfig,
    measured_starts,
    read_times_s,
    start_phases_s,
)
from llmscale_env.control.command import Command
from llmscale_env.control.run import load_steps, run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.envs.action_heads.pools import Loading
from llmscale_env.scenarios import ScenarioError, load_scenario
from llmscale_env.sim.compile import (
    before_flow_s,
    compile_cluster,
    pool_load_times_s,
    ps,
    swap_times_s,
)
from llmscale_env.sim.spec import InstanceState, LoadSource
from tests.small_clusters import Engine, pool, queued, seen, table
from tests.small_world import SMALL_WORLD

FAST = StartConfig(
    process_s=10, load_s=1, compile_s=20, cached_compile_s=4, capture_s=3, warm_up_s=5,
    download_bytes_per_s=1e9, page_cache_bytes_per_s=8e9, wake_s=0.5,
)  # fmt: skip
LINKS = NetworkConfig(ssd_bytes_per_s=2e9, host_bytes_per_s=32e9, inter_host_bytes_per_s=10e9)


# ---- composed by hand ----


def test_bytes_take_the_time_of_the_slowest_link_on_their_way():
    gb = llm_card("llama-2-7b").weight_bytes / 1e9
    found = read_times_s("llama-2-7b", "h100-80gb", 1, FAST, LINKS)
    assert set(found) == set(START_SOURCES)
    assert found["ssd"] == pytest.approx(gb / 2)
    assert found["host"] == pytest.approx(gb / 8)  # the loader, not the link
    assert found["download"] == pytest.approx(gb / 1 + gb / 8)  # stored, then read
    assert found["multicast"] == pytest.approx(gb / 10)
    assert found["sleep"] == pytest.approx(gb / 32)  # the link, not 0.7 of 64 GB/s
    a100 = read_times_s("llama-2-7b", "a100-80gb", 1, FAST, LINKS)
    assert a100["sleep"] == pytest.approx(gb / (0.7 * 32))


def test_shards_are_read_side_by_side_and_downloaded_together():
    gb = llm_card("llama-2-7b").weight_bytes / 1e9
    found = read_times_s("llama-2-7b", "h100-80gb", 2, FAST, LINKS)
    assert found["ssd"] == pytest.approx(gb / 2 / 2)
    assert found["sleep"] == pytest.approx(gb / 2 / 32)
    assert found["download"] == pytest.approx(gb / 1 + gb / 2 / 8)
    shared = LINKS.model_copy(update={"pcie_bytes_per_s": 20e9})
    both = read_times_s("llama-2-7b", "h100-80gb", 2, FAST, shared)
    assert both["sleep"] == pytest.approx(gb / 2 / 10)


def test_phases_are_those_that_a_source_needs():
    found = start_phases_s("llama-2-7b", "h100-80gb", 1, FAST, LINKS)
    for source, phases in found.items():
        assert tuple(phases) == PHASES
        read_s = read_times_s("llama-2-7b", "h100-80gb", 1, FAST, LINKS)[source]
        fixed = {"host": 10 + 1 + 4 + 3 + 5, "sleep": 0.5}.get(source, 10 + 1 + 20 + 3 + 5)
        assert sum(phases.values()) == pytest.approx(fixed + read_s)
    cached = FAST.model_copy(update={"compile_cache": True})
    assert start_phases_s("llama-2-7b", "h100-80gb", 1, cached, LINKS)["ssd"]["compile"] == 4


def test_an_engine_counts_layers_and_graphs():
    found = StartConfig(engine="vllm-0.11").fixed_s(80, cached=False)
    assert found["compile"] == pytest.approx(5.3 + 80 * 5.3 / 16)
    assert found["capture"] == pytest.approx(102 * 80 * 1.1e-3)
    few = StartConfig(engine="vllm-0.11", graphs=10).fixed_s(80, cached=True)
    assert few["capture"] == pytest.approx(10 * 80 * 1.1e-3)
    assert few["compile"] == pytest.approx(0.4 + 80 * 0.3)
    eager = StartConfig(eager=True).fixed_s(80, cached=False)
    assert (eager["compile"], eager["capture"]) == (0, 0)
    assert eager["warm_up"] > 0


def test_today_is_the_newest_engine():
    assert StartConfig.model_validate("today") == StartConfig()
    assert StartConfig.model_validate("vllm-0.11") == StartConfig(engine="vllm-0.11")


# ---- against what was measured ----


@pytest.mark.parametrize("llm, engine, cached", [
    ("llama-2-7b", "vllm-0.11", False),
    ("codellama-34b", "vllm-0.11", False),
    ("llama-3.1-8b", "vllm-0.26", False),
    ("llama-3.1-8b", "vllm-0.26", True),
])  # fmt: skip
def test_init_engine_of_the_logs(llm: str, engine: str, cached: bool):
    """Compile, capture and the rest: 24.1 and 35.7 s (vLLM 0.11), 36.5 and 25.9 s (0.26), within 6 %."""
    log = next(
        each for each in measured_starts()
        if each.llm == llm and each.engine == engine.replace("vllm-", "vLLM ")
        and (each.compile == "cached") == cached
    )  # fmt: skip
    init = ("compile", "capture", "warm_up")
    measured = sum(seconds for name in init if (seconds := log.seconds[name]) is not None)
    assert measured in (pytest.approx(24.1), pytest.approx(35.7), pytest.approx(36.5), 25.9)
    found = StartConfig(engine=engine).fixed_s(llm_card(llm).layers, cached)
    assert sum(found[name] for name in init) == pytest.approx(measured, rel=0.06)
    assert sum(log.composed[name] for name in init) == pytest.approx(
        sum(found[name] for name in init)
    )


@pytest.mark.parametrize("llm, logged", [("llama-2-7b", (12.2,)), ("codellama-34b", (57.7, 59.1))])
def test_weights_of_the_logs_come_as_from_an_ssd_of_ten_gigabits(
    llm: str, logged: tuple[float, ...]
):
    phases = start_phases_s(llm, "h100-80gb", 1, StartConfig(engine="vllm-0.11"))["ssd"]
    for seconds in logged:
        assert phases["read"] + phases["load"] == pytest.approx(seconds, rel=0.07)


def test_whole_starts_of_the_h200():
    """52.5 and 45.4 s, weights not read."""
    for cached, measured in ((False, 52.5), (True, 45.4)):
        total = sum(StartConfig().fixed_s(32, cached).values())
        assert total == pytest.approx(measured, rel=0.08)


def test_whole_starts_that_no_number_rests_on():
    """47.4 s with one A100; with four the composed start lacks a quarter of 97.7 s."""
    whole = {each.llm: each for each in measured_starts() if each.seconds["ready"] is not None}
    assert whole["qwen3-30b-a3b"].composed["ready"] == pytest.approx(47.4, rel=0.03)
    assert 0.7 < whole["qwen3-235b-a22b-fp8"].composed["ready"] / 97.7 < 0.8
    links = NetworkConfig(host_bytes_per_s=32e9)
    start = StartConfig(engine="vllm-0.11")
    host = start_phases_s("qwen3-30b-a3b", "a100-80gb", 1, start, links)["host"]
    assert sum(host.values()) == pytest.approx(whole["qwen3-30b-a3b"].composed["ready"], rel=0.01)


def test_measured_wake_ups():
    waking = {each.llm: each for each in measured_starts() if each.seconds["wake"] is not None}
    for llm in ("qwen3-0.6b", "qwen3-30b-a3b"):
        each = waking[llm]
        assert each.composed["wake"] == pytest.approx(each.seconds["wake"], rel=0.05)
        assert each.weight_gb == pytest.approx(llm_card(llm).weight_bytes / 1e9, rel=0.01)
    # Four GPUs share links two by two.
    four = NetworkConfig(
        host_bytes_per_s=32e9, pcie_bytes_per_s=0.7 * gpu_card("a100-80gb").pcie_bytes_per_s
    )
    phases = start_phases_s("qwen3-235b-a22b-fp8", "a100-80gb", 4, StartConfig(), four)["sleep"]
    assert sum(phases.values()) == pytest.approx(5.41, rel=0.05)


# ---- the command ----

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cards.md"
SHOWN = ("starts", "llm=llama-3.1-8b,qwen3-30b-a3b,codellama-34b,llama-3.3-70b", "gpu=h100")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cards_command.main(list(words)) == 0
    return capsys.readouterr().out


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]):
    page = PAGE.read_text()
    assert printed(capsys, *SHOWN, "format=markdown").strip() in page
    running = " ".join(page.split())
    *_, lines = printed(capsys, "measured_starts").strip().split("\n\n")
    assert len(lines.splitlines()) == 5
    assert all(f"- {line}" in running for line in lines.splitlines())


def test_a_row_is_the_sum_of_its_phases(capsys: pytest.CaptureFixture[str]):
    text = printed(
        capsys, "starts", "llm=llama-2-7b", "gpu=a100", "tp=1,4", "source=ssd,sleep",
        "engine=vllm-0.11", "compile_cache=true", "network=figure-5",
    )  # fmt: skip
    head, *rows = text.splitlines()
    assert head.split()[-2:] == ["warm-up", "s"]
    assert [row.split()[2:4] for row in rows] == [
        ["1", "ssd"], ["1", "sleep"], ["4", "ssd"], ["4", "sleep"],
    ]  # fmt: skip
    network = NetworkConfig.model_validate("figure-5")
    start = StartConfig(engine="vllm-0.11", compile_cache=True)
    for row in rows:
        *_, tp, source = row.split()[:4]
        seconds = [float(each) for each in row.split()[4:]]
        assert seconds[-1] == pytest.approx(sum(seconds[:-1]), abs=0.31)
        phases = start_phases_s("llama-2-7b", "a100-80gb", int(tp), start, network)[source]
        assert seconds[:-1] == pytest.approx(list(phases.values()), abs=0.051)


def test_a_degree_that_does_not_fit_says_why(capsys: pytest.CaptureFixture[str]):
    text = printed(capsys, "starts", "llm=llama-3.1-70b", "gpu=h100", "tp=1")
    assert "llama-3.1-70b does not fit on h100-80gb" in text
    text = printed(capsys, "starts", "llm=deepseek-v3", "gpu=h100")
    assert "fits at no degree" in text


@pytest.mark.parametrize("word, said", [
    ("engine=vllm-1", "engine = 'vllm-1': must be one of"),
    ("source=tape", "source = 'tape': must be some of download,ssd,host,multicast,sleep"),
    ("eager=yes", "eager = 'yes': must be true or false"),
    ("network=moon", "network = 'moon': must be one of"),
])  # fmt: skip
def test_words_that_the_command_does_not_know(
    word: str, said: str, capsys: pytest.CaptureFixture[str]
):
    assert cards_command.main(["starts", word]) == 2
    assert said in capsys.readouterr().err


# ---- bad input ----


@pytest.mark.parametrize("given, said", [
    ("tomorrow", "engine = 'tomorrow': must be today or one of vllm-0.11, vllm-0.26"),
    ({"eager": True, "graphs": 8}, "graphs = 8: not together with eager"),
    ({"process_s": -1}, "greater than or equal to 0"),
    ({"download_bytes_per_s": 0}, "greater than 0"),
    ({"compile": True}, "Extra inputs are not permitted"),
])  # fmt: skip
def test_a_start_that_makes_no_sense(given: Any, said: str):
    with pytest.raises(ValidationError, match=said):
        StartConfig.model_validate(given)


ALL = "fleet.pools.*."


@pytest.mark.parametrize("changes, said", [
    ({"load_source": "sleep"}, r"load_source = 'sleep': needs start"),
    ({"load_source": "download"}, r"load_source = 'download': needs start"),
    ({"load_source": "tape"}, "load_source"),
    ({"start": "tomorrow"}, "start.*engine = 'tomorrow'"),
    ({"load_source": "sleep", "start": "today", "swaps_to": ["llama-2-7b"]}, "not together with swaps_to"),
    ({"load_source": "sleep", "start": "today", "weights": "flow"}, "not together with weights = 'flow'"),
])  # fmt: skip
def test_a_pool_that_cannot_start(changes: dict[str, Any], said: str):
    with pytest.raises(ScenarioError, match=said):
        load_scenario(SMALL_WORLD, **{ALL + key: value for key, value in changes.items()})


def test_no_process_sleeps_for_no_time():
    changes = {ALL + "load_source": "sleep", ALL + "start": "today"}
    with pytest.raises(ScenarioError, match=r"host_keep_alive_s = 0: must be positive"):
        load_scenario(SMALL_WORLD, **changes, **{"fleet.host_keep_alive_s": 0})


# ---- in scenarios ----


def of(**changes: Any) -> Any:
    given = {ALL + key: value for key, value in changes.items()}
    return load_scenario(SMALL_WORLD, horizon_s=900.0, workload="chat", **given)


def test_a_scenario_without_it_is_what_it_was():
    spec = compile_cluster(load_scenario(SMALL_WORLD)).pools[0]
    weights = llm_card("llama-3.1-8b").weight_bytes
    assert spec.load_ps[:2] == (ps(3 + weights / 1.25e9), ps(3 + weights / 16e9))
    assert (spec.wake_ps, spec.load_source) == (-1, LoadSource.SSD)


def test_seconds_by_source_reach_the_engines():
    scenario = of(start="today", load_source="download")
    one = scenario.fleet.pools[0]
    times = pool_load_times_s(scenario, one)
    phases = start_phases_s(one.llm, one.gpu, one.tp, StartConfig(), scenario.network)
    for source in ("download", "host", "sleep"):
        assert times[source] == pytest.approx(sum(phases[source].values()))
    assert times["ssd"] == times["download"]  # what is always there
    spec = compile_cluster(scenario).pools[0]
    assert spec.load_ps == tuple(ps(times[name]) for name in ("ssd", "host", "multicast"))
    assert (spec.wake_ps, spec.load_source) == (-1, LoadSource.SSD)
    asleep = of(start="today", load_source="sleep")
    spec = compile_cluster(asleep).pools[0]
    assert spec.wake_ps == ps(times["sleep"])
    assert spec.load_source == LoadSource.HOST
    assert spec.load_ps[0] == ps(sum(phases["ssd"].values()))


def test_seconds_of_ones_own_count_first():
    scenario = of(start="today", load_source="sleep", load_s={"sleep": 3, "ssd": 100})
    spec = compile_cluster(scenario).pools[0]
    assert (spec.wake_ps, spec.load_ps[0]) == (ps(3), ps(100))
    assert compile_cluster(of(load_source="sleep", load_s={"sleep": 3})).pools[0].wake_ps == ps(3)


def test_the_bound_on_what_can_be_done_knows_that_processes_wake():
    spec = compile_cluster(of(start="today", load_source="sleep")).pools[0]
    assert spec.wake_ps < min(spec.load_ps)
    assert soonest_ps(spec) == spec.wake_ps
    assert soonest_ps(replace(spec, wake_ps=-1)) == min(spec.load_ps)


def test_weights_that_flow_come_after_all_else():
    scenario = of(start="today", weights="flow")
    one = scenario.fleet.pools[0]
    assert before_flow_s(scenario, one) == pytest.approx(
        sum(StartConfig().fixed_s(llm_card(one.llm).layers, cached=False).values())
    )


def test_an_llm_that_takes_turns_restarts_from_host_memory():
    scenario = load_scenario("multi-model-queue", **{ALL + "start": "today"})
    one = scenario.fleet.pools[0]
    phases = start_phases_s(one.llm, one.gpu, one.tp, StartConfig(), scenario.network)
    fetch_s, swap_s = swap_times_s(scenario, one, one.llm)
    assert fetch_s == pytest.approx(phases["ssd"]["read"])
    assert swap_s == pytest.approx(sum(phases["host"].values()))


def served_at(engine: Any, i: int, before_ps: int) -> tuple[int, int]:
    """(source, picosecond at which slot `i` becomes active)."""
    state, source, loaded_ps = seen(engine, i, "state", "source", "loaded_ps")
    assert state == InstanceState.LOADING
    engine.advance(int(loaded_ps) - 1)
    assert seen(engine, i, "state") == (InstanceState.LOADING,)
    engine.advance(int(loaded_ps) + 1)
    assert seen(engine, i, "state") == (InstanceState.ACTIVE,)
    return int(source), int(loaded_ps) - before_ps


@pytest.mark.parametrize("source", ["download", "sleep"])
def test_an_instance_serves_at_the_composed_second(engine_class: Engine, source: str):
    scenario = of(start="today", load_source=source)
    times = pool_load_times_s(scenario, scenario.fleet.pools[0])
    spec = compile_cluster(scenario)
    engine = engine_class(spec, table((0, 4, 2)))
    slot = spec.first_slot[1] + scenario.fleet.pools[1].initial_instances
    engine.advance(ps(10))
    engine.set_target(1, scenario.fleet.pools[1].initial_instances + 1)
    first = {"download": ("ssd", times["download"]), "sleep": ("host", times["host"])}[source]
    assert served_at(engine, slot, ps(10)) == (LoadSource[first[0].upper()], ps(first[1]))
    engine.set_target(1, 0)
    engine.advance(ps(200))
    engine.set_target(1, scenario.fleet.pools[1].initial_instances + 1)
    again = times["sleep"] if source == "sleep" else times["download"]
    assert served_at(engine, slot, ps(200)) == (LoadSource[first[0].upper()], ps(again))


def test_policies_and_commands_know_the_sources():
    scenario = of(start="today", load_source="sleep")
    assert load_steps(scenario) == load_steps(of(load_s={"ssd": pool_load_times_s(
        scenario, scenario.fleet.pools[0])["sleep"]}))  # fmt: skip
    assert Loading(scenario).choices == [["ssd", "host", "multicast"]]
    simulation = ClusterSimulation(scenario)
    simulation.start(0, table((0, 4, 2)))
    simulation.apply(0, Command(targets={"mixed": scenario.fleet.pools[1].initial_instances + 1}))
    loading = simulation.engine.instances(0)["source"]
    assert loading.max() == LoadSource.HOST  # as ordered, where another instance has the weights
    chiron: Any = make_policy("chiron")
    chiron.reset(scenario, 0)
    times = pool_load_times_s(scenario, scenario.fleet.pools[2])
    assert chiron._load_s(2) == pytest.approx(times["sleep"])


def test_a_fleet_whose_processes_sleep_is_there_sooner():
    late = {}
    for source in ("ssd", "sleep"):
        scenario = of(start="today", load_source=source)
        late[source] = run_episode(make_policy("hpa"), scenario, 3).summary
    assert late["sleep"]["loads_host"] > 0
    assert late["ssd"]["loads_host"] == 0
    assert late["ssd"]["loads_ssd"] > 0


# ---- the engines' rule, by hand: docs/engine.md, section 3 ----

SLEEPING = pool(
    n_slots=2, initial_active=1, load_ps=(100, 50, 10), wake_ps=7, load_source=LoadSource.HOST
)


LATE = table((10**6, 1, 1))


def sleeping(engine_class: Engine, until_ps: int = 10, **changes: Any) -> Any:
    """Two slots on one host, the first active until now."""
    pools = changes.pop("pools", {})
    engine = engine_class(
        queued(replace(SLEEPING, **pools), host_keep_alive_ps=40, **changes), LATE
    )
    engine.advance(until_ps)
    return engine


def test_a_slot_wakes_its_own_process_only(engine_class: Engine):
    engine = sleeping(engine_class)
    engine.set_target(0, 2)
    # The host has the weights, but no process of the second slot's.
    assert served_at(engine, 1, 10) == (LoadSource.HOST, 50)
    engine.set_target(0, 0)
    engine.advance(70)
    engine.set_target(0, 2)
    assert served_at(engine, 0, 70) == (LoadSource.HOST, 7)
    assert seen(engine, 1, "state") == (InstanceState.ACTIVE,)


@pytest.mark.parametrize(
    "wait_ps, found", [(40, (LoadSource.HOST, 7)), (41, (LoadSource.SSD, 100))]
)
def test_a_process_sleeps_as_long_as_the_host_keeps_weights(
    engine_class: Engine, wait_ps: int, found: tuple[int, int]
):
    engine = sleeping(engine_class)
    engine.set_target(0, 0)
    engine.advance(10 + wait_ps)
    engine.set_target(0, 1)
    assert served_at(engine, 0, 10 + wait_ps) == found


@pytest.mark.parametrize("ordered", [LoadSource.SSD, LoadSource.MULTICAST])
def test_another_source_makes_a_new_process(engine_class: Engine, ordered: LoadSource):
    engine = sleeping(engine_class)
    engine.set_target(0, 2)
    engine.advance(61)
    engine.drain(0)
    engine.set_target(0, 2, ordered)
    assert served_at(engine, 0, 61) == (ordered, SLEEPING.load_ps[ordered])


def test_a_cancelled_wake_up_leaves_no_process(engine_class: Engine):
    engine = sleeping(engine_class, pools={"n_slots": 1})
    engine.set_target(0, 0)
    engine.advance(12)
    engine.set_target(0, 1)
    engine.advance(15)
    engine.set_target(0, 0)
    engine.set_target(0, 1)
    assert served_at(engine, 0, 15) == (LoadSource.HOST, 50)


def test_a_process_that_is_not_woken_yet_goes_on_sleeping(engine_class: Engine):
    engine = sleeping(engine_class, pools={"n_slots": 1, "acquire_ps": 5})
    engine.set_target(0, 0)
    engine.advance(12)
    engine.set_target(0, 1)
    engine.advance(14)
    engine.set_target(0, 0)
    engine.set_target(0, 1)
    engine.advance(20)
    assert served_at(engine, 0, 19) == (LoadSource.HOST, 7)


def test_failures_leave_no_process(engine_class: Engine):
    engine = sleeping(engine_class, pools={"n_slots": 1, "repair_ps": 3})
    engine.fail(0)
    engine.advance(14)
    assert served_at(engine, 0, 13) == (LoadSource.HOST, 50)
    other = sleeping(engine_class, pools={"n_slots": 1})
    other.set_target(0, 0)
    other.fail_host(0)
    other.set_target(0, 1)
    assert served_at(other, 0, 10) == (LoadSource.SSD, 100)


def test_hosts_that_have_all_weights_have_processes_that_sleep(engine_class: Engine):
    spec = queued(SLEEPING, host_cache_at_start=True)
    engine = engine_class(spec, LATE)
    engine.advance(10)
    engine.set_target(0, 2)
    assert served_at(engine, 1, 10) == (LoadSource.HOST, 7)


@pytest.mark.parametrize("changes", [{"wake_ps": -2}, {"wake_ps": 5, "weight_bytes": 8}])
def test_a_wake_up_that_makes_no_sense(changes: dict[str, int]):
    with pytest.raises(ValueError, match="wake_ps = "):
        queued(pool(**changes))
