"""BlitzScale's figures that need no cluster: loading times, Figures 10, 11 and 12."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from experiments.blitzscale import fig05_loading_times as fig05
from experiments.blitzscale import fig10_chain_order as fig10
from experiments.blitzscale import fig11_several_chains as fig11
from experiments.blitzscale import fig12_zigzag as fig12
from llmscale_env.cluster.cards import llm_card
from tests.small_studies import frame_of, judged, verdicts
from tests.test_figures import small, small_run

pytest.importorskip("pulp")

BYTES = llm_card("llama-2-7b").weight_bytes
GBPS = 1e9 / 8


# ---- loading times ----


def test_loads_are_bytes_over_links():
    assert fig05.load_s("network") == pytest.approx(BYTES / (200 * GBPS), rel=1e-6)
    assert fig05.load_s("ssd-7b") == pytest.approx(BYTES / (10 * GBPS), rel=1e-6)
    assert fig05.load_s("nvlink-7b") == pytest.approx(
        BYTES / (1600 * GBPS) * (1 + 6 / 32), rel=1e-6
    )
    shard = llm_card("llama-2-70b").weight_bytes / 4
    assert fig05.load_s("ssd-70b") == pytest.approx(shard / (10 * GBPS), rel=1e-6)


def test_loading_times_and_the_programme():
    frame, parameters = small_run("blitzscale-fig05").copy(), small("blitzscale-fig05")
    assert frame["optimal"].tolist()[-1] is True
    *loads, programme = fig05.claims(frame, parameters)
    assert verdicts(loads) == ["reproduced"] * 4
    assert sum(len(load.parts) for load in loads) == 5
    frame.loc[frame["kind"] == "programme", "seconds"] = 0.05
    assert programme.unit == "ms"
    slow = list(judged(fig05, frame, parameters).values())[-1]
    assert slow.verdict == "not reproduced"
    assert slow.ours.mean == pytest.approx(50)


def test_the_median_of_the_repetitions_is_measured_anew(monkeypatch):
    times = iter([0.0, 1.0, 1.0, 4.0, 4.0, 6.0])  # they take 1, 3 and 2 s
    monkeypatch.setattr(fig05, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    parameters = fig05.LoadingTimes(repeats=3, layers=4, batches=2, load_times=(2,), loads=())
    (case,) = fig05.cases(parameters)
    assert case["timed"] is True
    assert fig05.run(case)[0]["seconds"] == 2.0


# ---- Figure 10 ----


def test_chains_by_hand():
    frame = small_run("blitzscale-fig10")
    of = frame[frame["part"] == "targets"].set_index(["what", "n"])["seconds"]
    alone = BYTES / (100 * GBPS)
    assert of["chain", 1] == pytest.approx(alone, rel=1e-6)
    assert of["chain", 3] == pytest.approx(alone * (1 + 2 / 32), rel=1e-6)
    assert of["fan-out", 3] == pytest.approx(
        3 * alone, rel=1e-3
    )  # 12500 // 3 bytes per microsecond
    # The first has two to forward to, at half speed each, so the third loads at half speed.
    assert of["tree", 3] == pytest.approx(alone * (2 + 1 / 32), rel=1e-6)


def test_the_faster_target_first():
    frame = small_run("blitzscale-fig10")
    alone = BYTES / (100 * GBPS)
    assert fig10.serving(frame, "fast-first") == (
        pytest.approx([0, alone / 2, alone * (1 + 1 / 64)], rel=1e-6),
        [0, 1, 2],
    )
    assert fig10.serving(frame, "slow-first")[0][1] == pytest.approx(alone, rel=1e-6)


def test_nothing_beats_all_plans():
    frame = small_run("blitzscale-fig10")
    for aim in fig10.AIMS:
        mine = fig10.gaps(frame, aim)
        assert len(mine) == 2
        assert (mine[["gap", "naive_gap"]] >= 1 - 1e-9).all().all()
        assert set(mine["plans"]) == {2 * (2 + 2)}
    length, half, optimum = fig10.claims(frame, small("blitzscale-fig10"))
    many, few = length.parts
    assert few.ours.mean == pytest.approx(1 + 2 / 32)
    assert many.ours.mean == pytest.approx(1 + 3 / 32)
    assert half.ours.mean == pytest.approx(0.5 / (1 + 1 / 32), rel=1e-6)
    assert "makes that plan" in half.how
    best = fig10.gaps(frame, "last")["gap"] < 1 + 1e-9
    assert optimum.ours.mean == pytest.approx(100 * best.mean())


# ---- Figure 11 ----


def test_kv_caches_in_the_way():
    frame = small_run("blitzscale-fig11")
    alone = BYTES / (100 * GBPS)
    of = frame.set_index(["chains", "kv_part", "target"])
    # A chain whose first target shares its link fairly with what it sends.
    assert of.loc[(1, 1.0, 2), "seconds"] == pytest.approx(alone * (2 + 1 / 32), rel=1e-6)
    assert of.loc[(1, 1.0, 1), "kv_got"] == 0.5
    assert of.loc[(2, 1.0, 2), "seconds"] == pytest.approx(alone, rel=1e-6)
    assert of.loc[(2, 1.0, 1), "kv_got"] == 1.0
    assert of.loc[(1, 0.0, 2), "seconds"] == pytest.approx(alone * (1 + 1 / 32), rel=1e-6)
    assert of["disturbed"].groupby("chains").sum().to_dict() == {1: 3, 2: 0}
    assert verdicts(fig11.claims(frame, small("blitzscale-fig11"))) == ["reproduced"] * 3


# ---- Figure 12 ----


def test_figure_12():
    frame = small_run("blitzscale-fig12")
    assert fig12.last_latency(frame, "best-effort") == 32
    assert fig12.last_latency(frame, "pull") == fig12.last_latency(frame, "programme") == 22
    example, third, burst, one, half, _, average = fig12.claims(frame, small("blitzscale-fig12"))
    printed, corrected = average.parts
    assert verdicts([example, burst, corrected, one]) == ["reproduced"] * 4
    assert [part.ours.mean for part in example.parts] == [22, 22, 32]
    # The last of 12 batches on 32 layers; of the example's six: 27 in place of 37.
    assert burst.parts[0].ours.mean == pytest.approx(100 * (1 - 200 / 363))
    assert burst.parts[-1].ours.mean == pytest.approx(100 * (1 - 27 / 37))
    assert third.verdict == "not reproduced"  # within 25 %, but the example is worked out
    assert "(2, 5)" in third.reason
    assert printed.verdict == "not reproduced"
    assert average.question
    assert "T = (3 0 0 0 0 0)" in average.reason
    assert (corrected.ours.mean, printed.ours.mean) == pytest.approx((17 / 21, 21.5 / 21))
    assert third.ours.mean == 16
    assert (one.ours.mean, half.ours.mean) == pytest.approx((7 / 6, 2))


def test_other_examples_give_other_numbers():
    parameters = fig12.Zigzag(load_time=3, endless=20)
    frame = frame_of(fig12, parameters)
    assert fig12.last_latency(frame, "pull") < 22
    said = [claim.sentence for claim in fig12.claims(frame, parameters)]
    assert not any("request 6" in each or "17" in each for each in said)
    assert any("1/7" in each for each in said)


def test_one_of_seven_layers_is_claimed_of_seven():
    parameters = fig12.Zigzag(layers=8, endless=20)
    said = [claim.sentence for claim in fig12.claims(frame_of(fig12, parameters), parameters)]
    assert said
    assert not any("1/7" in each or "request 6" in each for each in said)
