"""The scenario chat-prefix: what its cache and its routing are worth, and the command that measures it."""

from __future__ import annotations

import numpy as np
import pytest

from baselines import make_policy
from experiments import prefix_cache
from llmscale_env import load_scenario, run_episode
from llmscale_env.control import run as run_module
from llmscale_env.control.reward import draw_requests

SHORT = {"horizon_s": 200, "workload.streams.chat.rate_per_s": 5}


def test_who_serves_a_turn_decides_what_it_finds():
    scenario = load_scenario("chat-prefix", **SHORT)
    rows = {
        (router, cached): prefix_cache.measure(prefix_cache.variant(scenario, router, cached), [0])
        for router in ("round-robin", "session")
        for cached in (True, False)
    }
    found, asked = prefix_cache.shareable(draw_requests(scenario, np.random.default_rng(0)))
    hits = {key: row["hit_rate"] for key, row in rows.items()}
    assert hits["round-robin", False] == hits["session", False] == 0
    assert 0.3 < hits["round-robin", True] < hits["session", True] - 0.15 < found / asked
    for router in ("round-robin", "session"):
        on, off = rows[router, True], rows[router, False]
        assert on["requests"] == off["requests"]
        assert on["ttft_s_p50"] < off["ttft_s_p50"]
        assert on["attainment"] > off["attainment"]


def test_both_engines_serve_it_alike():
    scenario = load_scenario("chat-prefix", **{**SHORT, "horizon_s": 20})
    fast, slow = (
        run_episode(make_policy("static"), scenario, 3, engine=name)
        for name in ("fast", "reference")
    )
    assert fast.summary == slow.summary
    assert len(fast.requests) > 50


def test_pieces_find_what_earlier_pieces_left(monkeypatch: pytest.MonkeyPatch):
    """A streamed episode forgets requests that are done, and has the same latencies (of 32 bits)."""
    scenario = load_scenario("chat-prefix", **SHORT)
    whole = run_episode(make_policy("static"), scenario, 0).summary
    monkeypatch.setattr(run_module, "CHUNK_S", 20.0)
    pieces = run_module.run_streamed(make_policy("static"), scenario, 0).summary
    names = ("arrivals", "on_time", "late", "ttft_s_mean", "ttft_s_p90", "itl_s_mean", "e2e_s_p99")
    for name in names:
        assert pieces[f"chat/{name}"] == pytest.approx(whole[f"chat/{name}"], rel=1e-6)


def test_the_command(tmp_path, capsys: pytest.CaptureFixture[str]):
    words = ["routers=round-robin", "seeds=1", f"out={tmp_path}"]
    words += [f"scenario.{key}={value}" for key, value in SHORT.items()]
    assert prefix_cache.main(words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "chat-prefix, seeds 1: " in printed[0]
    assert [line.split()[:2] for line in printed[2:4]] == [
        ["round-robin", "on"],
        ["round-robin", "off"],
    ]
    assert len((tmp_path / "prefix_cache.csv").read_text().splitlines()) == 3
    assert prefix_cache.main(["scenario=chiron-8b", f"out={tmp_path}"]) == 2
    assert "none of its pools has v1" in capsys.readouterr().err
    assert prefix_cache.main(["routers=nearest"]) == 2
