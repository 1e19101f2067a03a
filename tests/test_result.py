"""What an episode leaves behind: frames, summary, files and picture, from arrays filled by hand."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

from llmscale_env.control.results.result import EpisodeResult, request_frame
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import ps
from llmscale_env.sim.metrics import request_columns
from llmscale_env.sim.observed import RESULT_DTYPE
from llmscale_env.sim.spec import RequestState
from llmscale_env.workload.requests import PS_PER_S, RequestTable
from tests.refusals import refuses
from tests.waiting import printed

ROOT = Path(__file__).resolve().parents[1]
LLM = "llama-3.1-8b"
S = PS_PER_S


def scenario(**changes):
    given = {
        "name": "by-hand",
        "horizon_s": 30,
        "control_interval_s": 10,
        "classes": [
            {"name": "fast", "ttft_s": 2, "itl_s": 0.5, "weight": 3},
            {"name": "slow", "ttft_s": 100, "itl_s": 5, "priority": 1},
        ],
        "workload": {"streams": []},
        "fleet": {
            "max_gpus": 8,
            "queues": [{"name": "later", "llm": LLM}],
            "pools": [
                {
                    "name": "front",
                    "llm": LLM,
                    "v1": None,
                    "max_instances": 4,
                    "initial_instances": 1,
                },
                {
                    "name": "wide",
                    "llm": LLM,
                    "tp": 2,
                    "v1": None,
                    "max_instances": 2,
                    "initial_instances": 0,
                },
            ],
            "routes": [{"pools": ["front", "wide"], "queue": "later"}],
        },
        **changes,
    }
    return Scenario.model_validate(given)


SERIES = {
    "time_s": [10.0, 20.0, 30.0],
    "reward": [-1.0, -2.0, -0.5],
    "cost/gpu": [1.0, 1.5, 0.5],
    "cost/violations": [0.0, 0.5, 0.0],
    "front/active": [1, 3, 1],
    "front/loading": [2, 0, 0],
    "front/draining": [0, 0, 2],
    "front/loads": [2, 0, 0],
    "front/stops": [0, 0, 2],
    "front/kv_use": [0.4, 0.2, 1.7],
    "wide/active": [0, 0, 0],
    "wide/draining": [0, 0, 0],
    "wide/loads": [0, 0, 0],
    "wide/stops": [0, 0, 0],
    "wide/kv_use": [0.0, 0.0, 0.0],
    "note": ["", "up", math.nan],
}
DECISIONS = [
    {"time_s": 0.0, "targets": {"front": np.int64(3)}, "drain": ()},
    {"time_s": 10.0},
    {"time_s": np.float64(20.0), "targets": {"front": 1}, "evict": {2: 1}},
]


def result_of(scenario, requests, results, **more):
    """As `run_episode` makes it."""
    horizon_ps = ps(scenario.horizon_s)
    return EpisodeResult.from_columns(
        scenario=scenario,
        policy="me",
        requests=request_columns(requests, results, scenario.classes, horizon_ps),
        frame=request_frame(requests, results, scenario, horizon_ps),
        **more,
    )


def build(series=SERIES, arrivals=(1.0, 2.0, 5.0, 28.0, 30.0), cluster=None, **more):
    n = len(arrivals)
    requests = RequestTable.build(
        arrivals,
        100,
        [6, 1, 9, 9, 9][:n],
        slo_class=[0, 0, 1, 0, 0][:n],
        llm_names=(LLM,),
        class_names=("fast", "slow"),
    )
    results = np.zeros(n, RESULT_DTYPE)
    for name in ("instance", "admitted_ps", "first_token_ps", "finished_ps", "max_itl_ps"):
        results[name] = -1
    states = [RequestState.FINISHED, RequestState.FINISHED, RequestState.REJECTED]
    results["state"] = [*states, RequestState.OWN_QUEUE, RequestState.FUTURE][:n]
    if n:
        results["instance"][:2] = (0, 2)
        results["admitted_ps"][:2] = (int(1.5 * S), 3 * S)
        results["first_token_ps"][:2] = (3 * S, 5 * S)
        results["finished_ps"][:2] = (int(5.5 * S), 5 * S)
        results["max_itl_ps"][0] = int(0.6 * S)
        results["emitted_tokens"][:2] = (6, 1)
        results["preemptions"][0] = 2
        results["restarts"][1] = 1
    return result_of(
        scenario(),
        requests,
        results,
        seed=7,
        series=series,
        decisions=DECISIONS,
        gpu_s=[60.0, 0.0],
        busy_s=[30.0, 0.0],
        loads_by_source=[[1, 1, 0], [0, 0, 0]],
        leftover_gpu_s=1.25,
        clipped=2,
        **more,
    )


def test_requests_by_hand():
    frame = build().requests
    assert frame["id"].tolist() == [0, 1, 2, 3]  # the one at the horizon has not arrived
    assert frame["arrival_s"].tolist() == [1, 2, 5, 28]
    assert frame["llm"].tolist() == [LLM] * 4
    assert frame["slo_class"].tolist() == ["fast", "fast", "slow", "fast"]
    assert frame["outcome"].tolist() == ["on_time", "late", "rejected", "unfinished"]
    nan = math.nan
    for name, expected in {
        "input_tokens": [100] * 4,
        "output_tokens": [6, 1, 9, 9],
        "queued_s": [0.5, 1, nan, nan],
        "ttft_s": [2, 3, nan, nan],
        "itl_mean_s": [0.5, 0, nan, nan],
        "itl_max_s": [0.6, 0, nan, nan],
        "e2e_s": [4.5, 3, nan, nan],
        "preemptions": [2, 0, 0, 0],
        "evictions": [0] * 4,
        "restarts": [0, 1, 0, 0],
        "instance": [0, 2, -1, -1],
    }.items():
        np.testing.assert_allclose(frame[name], expected, err_msg=name)


def test_summary_by_hand():
    s = build(extra={"mine": 3}).summary
    assert s["joint/arrivals"] == 4
    assert s["fast/slo_attainment"] == pytest.approx(1 / 3)
    assert s["joint/weighted_slo_attainment"] == pytest.approx(3 / 10)
    assert (s["horizon_s"], s["reward"], s["mine"]) == (30, -3.5, 3)
    assert (s["cost/gpu"], s["cost/violations"]) == (3.0, 0.5)
    assert (s["leftover_gpu_seconds"], s["clipped"]) == (1.25, 2)
    # In service: 1 at the start, then 1, 3, 1 active + 2 draining: 10 + 20 + 30 instance-seconds.
    assert s["instances_mean"] == pytest.approx(60 / 30)
    assert s["utilisation"] == pytest.approx(30 / 60)
    assert s["joint/throughput_requests_per_instance_s"] == pytest.approx(2 / 60)
    assert (s["scale_ups"], s["scale_downs"], s["hysteresis"]) == (2, 2, 2)
    assert (s["loads_ssd"], s["loads_host"], s["loads_multicast"]) == (1, 1, 0)
    # By active instances, and what draining ones hold does not make memory fuller than full.
    assert s["pool/front/kv_use_mean"] == pytest.approx((0.4 * 1 + 0.2 * 3 + 1.0 * 1) / 5)
    assert s["pool/wide/kv_use_mean"] == 0
    assert all(isinstance(value, float) for value in s.values())
    latencies = ("ttft_s_", "itl_s_", "e2e_s_")
    undefined = {key for key, value in s.items() if math.isnan(value)}
    assert undefined == {k for k in s if k.startswith("slow/") and k[5:].startswith(latencies)}


def test_every_key_of_the_summary_is_documented():
    words = EpisodeResult.__doc__
    result = build()
    for key in result.summary:
        name = key.rsplit("/", 1)[-1]
        if key.startswith("cost/"):
            name = "cost/PART"
        for latency in ("ttft_s", "itl_s", "e2e_s"):
            if name.startswith(latency):
                assert f"_{name.rsplit('_', 1)[1]}" in words
                name = f"{latency}_mean, _p50, _p90, _p99, _max"
        assert name in words, key
    for column in result.requests.columns:
        assert f"`{column}`" in words


def test_several_llms_share_out_the_instances():
    other = "llama-3.2-3b"
    fleet = scenario().fleet.model_dump()
    fleet["pools"][1]["llm"] = other
    two = scenario(fleet=fleet)
    requests = RequestTable.build(
        [1.0, 2.0],
        100,
        5,
        llm=[0, 1],
        llm_names=two.fleet.llms,
        class_names=("fast", "slow"),
    )
    results = np.zeros(2, RESULT_DTYPE)
    results["state"] = RequestState.FINISHED
    results["first_token_ps"], results["finished_ps"] = 3 * S, 4 * S
    result = result_of(
        two,
        requests,
        results,
        seed=0,
        series={**SERIES, "wide/active": [1, 1, 1]},
        decisions=[],
        gpu_s=[60.0, 50.0],
        busy_s=[0.0, 0.0],
        loads_by_source=np.zeros((2, 3)),
    )
    assert result.groups == [
        *("fast", "slow", "joint"),
        *(f"{llm}/{group}" for llm in (LLM, other) for group in ("fast", "slow", "joint")),
    ]
    s = result.summary
    assert s[f"{LLM}/joint/throughput_requests_per_instance_s"] == pytest.approx(1 / 60)
    assert s[f"{other}/joint/throughput_requests_per_instance_s"] == pytest.approx(1 / 25)
    assert s["joint/throughput_requests_per_instance_s"] == pytest.approx(2 / 85)
    table = result.table()
    assert table.loc[f"{other}/joint", "arrivals"] == 1
    assert table.shape[0] == 9


def test_words():
    text = str(build())
    assert text.splitlines()[0] == "by-hand, policy me, seed 7: 30 s"
    fast = next(line.split() for line in text.splitlines() if line.startswith("fast"))
    assert fast[1:7] == ["3", "1", "1", "0", "1", "33.3%"]
    assert "2 up, 2 down (hysteresis 2.00)" in text
    assert "reward -3.500" in text
    assert max(len(line) for line in text.splitlines()[:-1]) <= 110


def test_quantiles_over_several_classes_are_not_shown():
    lines = {line.split()[0]: line.split() for line in str(build()).splitlines()}
    assert "-" not in lines["fast"][7:9]
    assert lines["joint"][7:11] == ["-"] * 4


def test_files(tmp_path: Path):
    import pandas as pd

    result = build()
    folder = tmp_path / "deep" / "here"
    paths = result.to_csv(folder)
    names = ["requests.csv", "series.csv", "summary.csv", "decisions.jsonl"]
    assert paths == [folder / name for name in names]
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)
    requests = pd.read_csv(folder / "requests.csv")
    assert requests["outcome"].tolist() == result.requests["outcome"].tolist()
    np.testing.assert_array_equal(requests["ttft_s"], result.requests["ttft_s"])
    assert pd.read_csv(folder / "series.csv")["front/active"].tolist() == [1, 3, 1]
    summary = pd.read_csv(folder / "summary.csv")
    assert summary.columns.tolist() == ["scenario", "policy", "seed", "key", "value"]
    assert dict(zip(summary["key"], summary["value"], strict=True)) == pytest.approx(
        result.summary, nan_ok=True
    )
    lines = (folder / "decisions.jsonl").read_text().splitlines()
    assert [json.loads(line)["time_s"] for line in lines] == [0, 10, 20]
    assert json.loads(lines[0])["targets"] == {"front": 3}
    result.to_csv(folder)  # again, over what is there
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch):
    result = build()
    result.to_csv(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    write = Path.write_bytes

    def full_disk(self: Path, data: bytes) -> int:
        if "summary" in self.name:
            write(self, data[:5])
            raise OSError("no space left")
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    result.summary["reward"] = 5.0
    refuses("no space left", result.to_csv, tmp_path, error=OSError)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_picture(tmp_path: Path):
    path = build().plot(tmp_path / "pictures" / "episode.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in path.parent.iterdir()] == ["episode.png"]
    assert build().plot(tmp_path / "episode.svg").read_text().startswith("<?xml")
    with pytest.raises(ValueError, match=r"'episode.jpeg': must end in one of .png"):
        build().plot(tmp_path / "episode.jpeg")


def test_an_episode_without_requests(tmp_path: Path):
    result = build(arrivals=())
    assert result.summary["joint/arrivals"] == 0
    assert "fast" in str(result)
    assert "100.0%" not in str(result)
    assert result.plot(tmp_path / "empty.png").exists()
    assert result.to_csv(tmp_path)[0].read_text().startswith("id,arrival_s")


def test_a_result_can_be_sent_to_another_process():
    result = build()
    copy = pickle.loads(pickle.dumps(result))
    assert copy.requests.equals(result.requests)
    assert copy.series.equals(result.series)
    assert copy.decisions == result.decisions
    assert str(copy) == str(result)


def test_slips():
    short = {**SERIES, "reward": [1.0, 2.0]}
    refuses(r"series\['reward'\]: expected 3 values.*\(2,\)", build, series=short)
    without = {name: column for name, column in SERIES.items() if name != "wide/active"}
    refuses(r"series\['wide/active'\] is missing", build, series=without)


def test_heavy_imports_wait():
    code = "import sys, llmscale_env.control.results.result as r; print('pandas' in sys.modules)"
    assert printed(code).strip() == "False"
