"""The table of requests: merging, seeds, independence of streams, bad input, mixes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from llmscale_env.scenarios import load_scenario
from llmscale_env.workload import (
    DEFAULT_CLASSES,
    BatchQueueConfig,
    SLOClass,
    StreamConfig,
    WorkloadConfig,
    generate_requests,
)
from llmscale_env.workload.mixes import load_mix, mix_names, replayed
from llmscale_env.workload.requests import COLUMNS, PS_PER_S
from tests.refusals import refuses
from tests.small_world import SMALL_WORLD
from tests.waiting import printed

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "traces"
LLMS = ("llama-3.1-8b", "llama-3.1-70b")


def generate(workload, seed=0, horizon_s=600.0, llms=LLMS, classes=DEFAULT_CLASSES):
    rng = np.random.default_rng(seed)
    return generate_requests(workload, classes=classes, llms=llms, horizon_s=horizon_s, rng=rng)


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(getattr(a, c), getattr(b, c)) for c in COLUMNS)


def digest(table) -> str:
    sha = hashlib.sha256()
    for column in COLUMNS:
        sha.update(getattr(table, column).astype("<i8").tobytes())
    return sha.hexdigest()


def stream(name="a", **keys):
    return StreamConfig(
        **{"name": name, "llm": LLMS[0], "rate_per_s": 5.0, "lengths": "azure-conv", **keys}
    )


@pytest.mark.parametrize("name", mix_names())
def test_one_seed_is_one_table(name):
    mix = load_mix(name)
    llms = tuple(dict.fromkeys(str(part.llm) for part in mix.parts))
    names = [str(part.slo_class) for part in (*mix.streams, *mix.batch_queues)]
    names += [name for job in mix.jobs for name in job.classes]
    classes = [SLOClass(name=name, ttft_s=3600, itl_s=2) for name in dict.fromkeys(names)]
    first = generate(mix, llms=llms, classes=classes)
    assert same(first, generate(mix, llms=llms, classes=classes))
    assert not same(first, generate(mix, seed=1, llms=llms, classes=classes))
    quiet = "burstgpt" in name or name == "multi-region"  # which begins at midnight
    assert len(first) > (100 if quiet else 1000)


def test_tables_are_the_same_on_every_machine():
    # Counts, uniforms and integers only: any machine and any NumPy of the pinned stream agree.
    workload = load_scenario(SMALL_WORLD).workload
    assert digest(generate(workload, seed=0)) == GOLDEN_MIXED_SLO


def test_another_process_draws_the_same():
    code = (
        "import numpy as np; from llmscale_env.workload import *;"
        "from llmscale_env.workload.mixes import load_mix;"
        "t = generate_requests(load_mix('code-burst'), classes=DEFAULT_CLASSES,"
        f"llms={LLMS!r}, horizon_s=600.0, rng=np.random.default_rng(5));"
        "print(int(t.arrival_ps.sum()), int(t.output_tokens.sum()), len(t))"
    )
    out = printed(code)
    table = generate(load_mix("code-burst"), seed=5)
    expected = [int(table.arrival_ps.sum()), int(table.output_tokens.sum()), len(table)]
    assert [int(word) for word in out.split()] == expected


def test_episodes_of_one_generator_differ_and_follow_from_its_state():
    rng = np.random.default_rng(0)
    keys = {"classes": DEFAULT_CLASSES, "llms": LLMS, "horizon_s": 100.0}
    first = generate_requests(load_mix("chat"), rng=rng, **keys)
    state = rng.bit_generator.state
    second = generate_requests(load_mix("chat"), rng=rng, **keys)
    assert not same(first, second)
    # A saved and restored environment restores the generator's state and nothing else.
    restored = np.random.default_rng(99)
    restored.bit_generator.state = state
    assert same(second, generate_requests(load_mix("chat"), rng=restored, **keys))


def test_what_is_generated_does_not_depend_on_the_policy_or_on_reads():
    table = generate(load_mix("code-burst"))
    with pytest.raises(ValueError, match="read-only"):
        table.output_tokens[0] = 1


def test_changing_one_stream_leaves_the_others_alone():
    a, b = stream("a"), stream("b", slo_class="batch", lengths="arxiv")
    both = generate(WorkloadConfig(streams=(a, b)))
    changed = generate(
        WorkloadConfig(streams=(stream("c"), stream("a", rate_per_s=50.0, arrivals="gamma"), b))
    )
    alone = generate(WorkloadConfig(streams=(b,)))
    for table in (both, changed):
        rows = table.slo_class == 1
        for column in COLUMNS:
            assert np.array_equal(getattr(table, column)[rows], getattr(alone, column))


def test_a_predictor_changes_predictions_only():
    oracle, noisy = (
        generate(load_mix("chat").model_copy(update={"predictor": predictor}))
        for predictor in (
            WorkloadConfig(predictor={"kind": "oracle"}).predictor,
            WorkloadConfig(predictor={"kind": "noisy"}).predictor,
        )
    )
    for column in list(COLUMNS)[:-1]:
        assert np.array_equal(getattr(oracle, column), getattr(noisy, column))
    assert np.array_equal(oracle.predicted_output_tokens, oracle.output_tokens)
    assert not np.array_equal(noisy.predicted_output_tokens, noisy.output_tokens)


def test_a_queue_of_batch_requests_is_there_at_its_time():
    queue = BatchQueueConfig(
        name="q", llm=LLMS[1], n_requests=250, at_s=120.0, lengths="arxiv", region="east"
    )
    table = generate(WorkloadConfig(streams=(stream(region="west"),), batch_queues=(queue,)))
    rows = table.slo_class == 1
    assert rows.sum() == 250
    assert set(table.arrival_ps[rows]) == {120 * PS_PER_S}
    assert set(table.llm[rows]) == {1}
    assert table.region_names == ("west", "east")
    assert set(table.region[rows]) == {1}
    assert set(table.region[~rows]) == {0}
    ids = np.flatnonzero(rows)
    assert (np.diff(ids) == 1).all()
    assert table.arrival_ps[ids[0] - 1] < 120 * PS_PER_S < table.arrival_ps[ids[-1] + 1]
    assert len(generate(WorkloadConfig(batch_queues=(queue,)), horizon_s=120.0)) == 0


def test_ties_keep_the_order_of_the_workload():
    queues = tuple(
        BatchQueueConfig(
            name=f"q{k}", llm=LLMS[0], n_requests=3, lengths={"kind": "fixed", "input_tokens": k}
        )
        for k in (5, 3, 4)
    )
    table = generate(WorkloadConfig(batch_queues=queues))
    assert table.input_tokens.tolist() == [5, 5, 5, 3, 3, 3, 4, 4, 4]


def test_rate_scale():
    mix = load_mix("code-burst")
    base, double = generate(mix), generate(load_mix("code-burst", rate_scale=2.0))
    assert len(double) == pytest.approx(2 * len(base), rel=0.03)
    assert mix.scaled(2.0).scaled(0.5).rate_scale == 1.0
    assert same(generate(mix.scaled(2.0)), double)
    refuses(r"rate_scale = -1.0: .*greater than 0", load_mix, "chat", rate_scale=-1.0)


def test_mixes_have_their_rates_and_llm():
    # A count window of another part of the trace has another rate: mean over many seeds.
    sizes = [len(generate(load_mix("chat"), seed, horizon_s=600.0)) for seed in range(40)]
    assert np.mean(sizes) == pytest.approx(30 * 600, rel=0.05)
    table = generate(load_mix("code-burst", llm=LLMS[1]), horizon_s=60.0)
    assert set(table.llm) == {1}
    said = r"mix = 'chatt'.*'chat', 'code-burst'.*, of families, .*'mixed-slo/train'"
    refuses(said, load_mix, "chatt")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the raw traces are not here")
def test_the_same_episode_replays_the_trace_request_by_request():
    names = {"conv": "azure-conv-2023", "code": "azure-code-2023"}
    counted = WorkloadConfig(
        streams=tuple(
            stream(n, rate_per_s=None, arrivals={"kind": "counts", "table": t})
            for n, t in names.items()
        )
    )
    replay = replayed(counted, SHARED)
    a, b = generate(counted, 3, 1800.0), generate(replay, 3, 1800.0)
    # Second by second the same number of requests, at the trace's own times and lengths.
    seconds = [np.bincount(t.arrival_ps // PS_PER_S, minlength=1800) for t in (a, b)]
    assert np.array_equal(*seconds)
    assert not np.array_equal(a.arrival_ps, b.arrival_ps)
    raw = np.loadtxt(SHARED / "azure_code_2023.csv.gz", delimiter=",", skiprows=1)
    own = generate(replayed(WorkloadConfig(streams=(counted.streams[1],)), SHARED), 3, 1800.0)
    pairs = {(int(i), int(o)) for _, i, o in raw}
    assert {(int(i), int(o)) for i, o in zip(own.input_tokens, own.output_tokens, strict=True)} <= (
        pairs
    )


def test_replaying_without_the_file_says_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"traces fetch azure-conv-2023"):
        replayed(load_mix("chat"), tmp_path)


def test_a_trace_with_its_own_llms_and_classes(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "arrival_time_s,input_tokens,output_tokens,llm,slo_class\n"
        f"0,10,5,{LLMS[1]},batch\n1.5,20,6,{LLMS[0]},interactive\n2,30,7,{LLMS[1]},interactive\n"
    )
    own = StreamConfig(
        name="t",
        llm=None,
        slo_class=None,
        arrivals={"kind": "trace", "path": str(path)},
        lengths="trace",
    )
    table = generate(WorkloadConfig(streams=(own,)), horizon_s=2.5)
    assert table.llm.tolist() == [1, 0, 1]
    assert table.slo_class.tolist() == [1, 0, 0]
    assert table.arrival_s.tolist() == [0, 1.5, 2]
    assert table.input_tokens.tolist() == [10, 20, 30]
    assert table.predicted_output_tokens.tolist() == [6, 6, 6]
    with pytest.raises(ValueError, match=r"streams\[0\].llm = 'llama-3.1-70b': unknown"):
        generate(WorkloadConfig(streams=(own,)), llms=LLMS[:1], horizon_s=2.5)


def test_a_million_requests_are_quick_enough_to_be_tested_here():
    table = generate(WorkloadConfig(streams=(stream(rate_per_s=2000.0),)), horizon_s=500.0)
    assert len(table) == pytest.approx(1_000_000, rel=0.01)


@pytest.mark.parametrize(
    "data, message",
    [
        ({"streams": [{"name": "a", "llm": "x", "lengths": "sharegpt"}]}, "rate_per_s is missing"),
        ({"streams": [{"name": "a", "llm": None, "rate_per_s": 1}]}, "llm is missing"),
        ({"streams": [{"name": "a", "llm": "x", "rate_per_s": -1}]}, "greater than 0"),
        ({"streams": [{"name": "a", "llm": "x", "rate_per_s": 1, "lengths": "trace"}]}, "replay"),
        ({"streams": [{"name": "a", "llm": "x", "rate_per_s": 1, "rte": 2}]}, "rte"),
        ({"batch_queues": [{"name": "a", "llm": "x", "n_requests": -5}]}, "n_requests"),
        ({"batch_queues": [{"name": "a", "llm": "x", "n_requests": 5}] * 2}, "must be unique"),
        ({"predictor": {"kind": "perfect"}}, "oracle"),
        ({"rate_scale": float("inf")}, "rate_scale"),
    ],
)
def test_bad_workloads_say_what_is_wrong(data, message):
    refuses(message, WorkloadConfig.model_validate, data, error=ValidationError)


def test_unknown_names_and_horizons():
    workload = WorkloadConfig(streams=(stream(),))
    refuses(r"streams\[0\].llm = 'llama-3.1-8b': unknown.*\['m'\]", generate, workload, llms=("m",))
    with pytest.raises(ValueError, match=r"streams\[0\].slo_class = 'interactive': unknown"):
        generate(workload, classes=(SLOClass(name="gold", ttft_s=1, itl_s=1),))
    with pytest.raises(ValueError, match=r"table = 'nope'.*azure-conv"):
        generate(WorkloadConfig(streams=(stream(lengths="nope"),)))
    refuses(r"horizon_s = 0.0", generate, workload, horizon_s=0.0)


def test_configs_are_frozen_and_survive_a_round_trip():
    mix = load_scenario(SMALL_WORLD).workload
    with pytest.raises(ValidationError, match="frozen"):
        mix.rate_scale = 2.0
    assert WorkloadConfig.model_validate(mix.model_dump()) == mix
    assert WorkloadConfig.model_validate_json(mix.model_dump_json()) == mix


def test_default_classes_are_chirons():
    interactive, batch = DEFAULT_CLASSES
    assert (interactive.ttft_s, interactive.itl_s, interactive.priority) == (10.0, 0.2, 0)
    assert (batch.ttft_s, batch.itl_s, batch.priority) == (3600.0, 2.0, 1)


def test_an_empty_workload_is_an_empty_table():
    assert len(generate(WorkloadConfig())) == 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["poisson", "gamma", "mmpp", "spikes", "diurnal"]),
            st.floats(0.01, 20),
            st.sampled_from(["azure-code", "reasoning", "m-small"]),
        ),
        max_size=4,
    ),
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 120)), max_size=3),
    st.integers(0, 2**63),
)
def test_any_workload_gives_a_valid_table(parts, queues, seed):
    workload = WorkloadConfig(
        streams=tuple(
            stream(f"s{k}", arrivals=kind, rate_per_s=rate, lengths=lengths)
            for k, (kind, rate, lengths) in enumerate(parts)
        ),
        batch_queues=tuple(
            BatchQueueConfig(name=f"q{k}", llm=LLMS[0], n_requests=n, at_s=at)
            for k, (n, at) in enumerate(queues)
        ),
    )
    table = generate(workload, seed, horizon_s=100.0)
    assert (table.slo_class == 1).sum() == sum(n for n, at in queues if at < 100)
    if len(table):
        assert table.arrival_ps[-1] < 100 * PS_PER_S
    assert same(table, generate(workload, seed, horizon_s=100.0))


GOLDEN_MIXED_SLO = "b3f32030b3a40be479ce18cf47ce635d93ab3c18c8617f047d3a270cea0cbab2"


def test_the_examples_of_the_docs_run(tmp_path, monkeypatch):
    docs = Path(__file__).resolve().parents[1] / "docs" / "workloads.md"
    blocks = re.findall(r"```python\n(.*?)```", docs.read_text(encoding="utf-8"), flags=re.DOTALL)
    rows = "\n".join(f"{k / 10},{k + 1},5" for k in range(300))
    (tmp_path / "my_trace.csv").write_text(f"arrival_time_s,input_tokens,output_tokens\n{rows}\n")
    monkeypatch.chdir(tmp_path)
    results = []
    for block in [each for each in blocks if "\nrequests = " in each]:
        names: dict = {}
        exec(block, names)
        results.append(len(names["requests"]))
    assert results[0] > 30_000
    assert results[1] == pytest.approx(25 * 900, rel=0.02)
    # One replays the files of `fetch`, which are not there.
    replay = next(each for each in blocks if "replayed(" in each)
    refuses("fetch azure-conv-2023 to=traces", exec, replay, {}, error=FileNotFoundError)
