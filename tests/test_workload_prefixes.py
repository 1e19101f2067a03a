"""Requests that begin alike: hashes of traces, conversations of a CSV, generated turns and system prompts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmscale_env.sim.spec import (
    ClusterSpec,
    ProfileSpec,
    RequestState,
    RouterKind,
    RouteSpec,
    V1Spec,
)
from llmscale_env.workload import StreamConfig, WorkloadConfig, generate_requests, request_chunks
from llmscale_env.workload.config import SystemPromptsConfig, TurnsConfig
from llmscale_env.workload.conversations import Turns, draw_prompts
from llmscale_env.workload.prefixes import Prefixes, shared_blocks, spans_of
from llmscale_env.workload.readers import read_trace
from llmscale_env.workload.requests import PS_PER_S, RequestTable
from tests.refusals import refuses
from tests.small_clusters import Engine, column, pool, run

BLOCK = 8
"""Tokens of a hash in these traces."""


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(at_s: float, tokens: int, ids: list[int] | None, output: int = 2) -> dict[str, Any]:
    named = {} if ids is None else {"hash_ids": ids}
    return {"timestamp": at_s * 1000, "input_length": tokens, "output_length": output, **named}


def replay(path: Path, horizon_s: float = 100.0, seed: int = 0, **changes: Any) -> RequestTable:
    """The trace as the only stream of a workload; `changes` are those of its arrivals, or its rate."""
    rate = changes.pop("rate_per_s", None)
    lengths = changes.pop("lengths", "trace")
    arrivals = {"kind": "trace", "path": str(path), "hash_block_tokens": BLOCK, **changes}
    stream = {"name": "t", "llm": "m", "slo_class": "c", "arrivals": arrivals, "lengths": lengths}
    return generate(horizon_s, seed, {**stream, "rate_per_s": rate})


def generate(horizon_s: float, seed: int, *streams: dict[str, Any]) -> RequestTable:
    workload = WorkloadConfig(streams=tuple(StreamConfig(**stream) for stream in streams))
    rng = np.random.default_rng(seed)
    return generate_requests(workload, classes=("c",), llms=("m",), horizon_s=horizon_s, rng=rng)


def owners(table: RequestTable, r: int) -> list[int]:
    """Whose token each one of a request's sequence is."""
    assert table.prefixes is not None
    found: list[int] = []
    for owner, end in table.prefixes.spans(r):
        found += [owner] * (end - len(found))
    whole = int(table.input_tokens[r] + table.output_tokens[r])
    return found + [int(table.prefixes.name[r])] * (whole - len(found))


def in_common(table: RequestTable, a: int, b: int) -> int:
    """Leading tokens of two requests that are the same."""
    count = 0
    for x, y in zip(owners(table, a), owners(table, b), strict=False):
        if x != y:
            break
        count += 1
    return count


# ---- hashes --------------------------------------------------------------------------------------


def trie(lists: list[list[int]]) -> tuple[list[int], list[int]]:
    """`shared_blocks`, prompt by prompt."""
    made: dict[tuple[int, ...], int] = {}
    owner, depth = [], []
    for r, ids in enumerate(lists):
        paths = [tuple(ids[: d + 1]) for d in range(len(ids))]
        known = [path for path in paths if path in made]
        owner.append(made[known[-1]] if known else -1)
        depth.append(len(known))
        made.update((path, r) for path in paths if path not in made)
    return owner, depth


def flat(lists: list[list[int]]) -> tuple[Any, Any]:
    first = np.cumsum([0, *map(len, lists)])
    return np.array([x for ids in lists for x in ids], np.uint64), first


def test_the_deepest_node_and_who_made_it():
    lists = [[7, 1, 2], [7, 1, 3], [], [7, 1, 3, 4], [9], [7, 1, 2, 5], [7]]
    owner, depth = shared_blocks(*flat(lists))
    assert owner.tolist() == [-1, 0, -1, 1, -1, 0, 0]
    assert depth.tolist() == [0, 2, 0, 3, 0, 3, 1]
    assert [x.tolist() for x in shared_blocks(*flat([]))] == [[], []]


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=20))
def test_levels_at_once_are_a_trie(lists):
    owner, depth = shared_blocks(*flat(lists))
    assert (owner.tolist(), depth.tolist()) == trie(lists)


def test_a_trace_with_hashes(tmp_path):
    """Blocks of 8: the third shares 2 with the first, the fourth all its 19 tokens with the third."""
    path = lines(
        tmp_path / "t.jsonl",
        row(0, 24, [1, 2, 3]),
        row(1, 20, None),
        row(2, 20, [1, 2, 9]),
        row(3, 19, [1, 2, 9]),
        row(4, 30, [1, 2, 3, 5], output=0),
        row(5, 9, []),
        row(6, 30, [1, 2, 3]),  # without the rest, as some tools write it
    )
    trace = read_trace(path, hash_block_tokens=BLOCK)
    assert trace.prefixes is not None
    spans = [trace.prefixes.spans(r) for r in range(len(trace))]
    assert spans == [[], [], [(0, 16)], [(0, 16), (2, 19)], [], [(0, 24)]]
    bare = lines(tmp_path / "b.jsonl", row(0, 24, None), row(1, 24, []))
    assert read_trace(bare).prefixes is None
    assert replay(bare).prefixes is None


def test_names_of_fields_as_dynamo_has_them(tmp_path):
    """Later turns of a session say how long after the turn before they come."""
    path = lines(
        tmp_path / "d.jsonl",
        {"session_id": 1, "created_time": 0, "input_tokens": 16, "output_tokens": 4, "hash_ids": [3, 4]},
        {"session_id": 1, "delay_ms": 1500, "input_length": 30, "output_length": 4, "hash_ids": [3, 4, 5, 6]},
        {"session_id": 2, "timestamp": 1000, "input_length": 8, "output_length": 1, "hash_ids": [3]},
        {"session_id": 1, "delay": 500, "input_length": 8, "output_length": 1, "hash_ids": None},
    )  # fmt: skip
    refuses("arrivals must not go backwards", read_trace, path, "mooncake", False, None, BLOCK)
    trace = read_trace(path, "mooncake", sort=True, hash_block_tokens=BLOCK)
    assert (trace.arrival_ps / PS_PER_S).tolist() == [0, 1, 1.5, 2]
    assert trace.prefixes is not None
    assert [trace.prefixes.spans(r) for r in range(4)] == [[], [(0, 8)], [(0, 16)], []]


@pytest.mark.parametrize(
    "ids, says",
    [
        ([1, 2], r"\[1, 2\], 2 of them: .* 8 tokens \(hash_block_tokens\) of an input of 25, .* 3"),
        ([1, 2, 3, 4, 5], r"5 of them"),
        ([1, 2, -3], r"hash_ids = \[1, 2, -3\]"),
        ([1, 2, 2.5], r"hash_ids = \[1, 2, 2.5\]"),
        ([1, 2, 2**64], r"expected whole numbers from 0 on"),
        ([1, 2, True], r"expected whole numbers"),
        ([1, 2, "x"], r"hash_ids = \[1, 2, 'x'\]"),
        ("123", r"hash_ids = 123: expected"),
        (17, r"hash_ids = 17: expected"),
        ({}, r"hash_ids = \{\}: expected"),
    ],
)  # fmt: skip
def test_hashes_that_cannot_be(tmp_path, ids, says):
    path = lines(tmp_path / "t.jsonl", row(0, 8, [1]), row(1, 25, ids))
    refuses(f"t.jsonl:2: .*{says}", read_trace, path, "auto", False, None, BLOCK)


def test_blocks_of_hashes_have_tokens(tmp_path):
    path = lines(tmp_path / "t.jsonl", row(0, 8, [1]))
    refuses("hash_block_tokens = 0: must be at least 1", read_trace, path, hash_block_tokens=0)


def test_a_delay_without_a_turn_before(tmp_path):
    late = {"session_id": "x", "delay": 5, "input_length": 8, "output_length": 1}
    refuses(":1: expected a JSON object like", read_trace, lines(tmp_path / "t.jsonl", late))


def cluster(blocks: int = 1000) -> ClusterSpec:
    """One instance with blocks of 4 tokens."""
    profile = ProfileSpec.linear(
        max_batch=8,
        decode_const_ps=10,
        decode_per_request_ps=1,
        decode_per_token_ps=0,
        prefill_const_ps=10,
        prefill_per_token_ps=1,
        kv_capacity_tokens=4 * blocks,
    )
    v1 = pool(v1=V1Spec(block_tokens=4), pull=(), batch_limit=8, chunk_tokens=32)
    return ClusterSpec(
        profiles=(profile,),
        pools=(v1,),
        routes=((RouteSpec(RouterKind.ROUND_ROBIN, (0,)),),),
        half_block_tokens=0,
    )


def test_a_replay_finds_what_the_hashes_say(tmp_path, engine_class: Engine):
    """Requests far apart, a block of hashes being two of the cache: at least one token is computed."""
    path = lines(
        tmp_path / "t.jsonl",
        row(0, 24, [1, 2, 3]),
        row(1, 20, [1, 2, 9]),  # 2 blocks of the first: 16
        row(2, 19, [1, 2, 9]),  # all 19 of the second: 4 blocks of 4 and 3 tokens
        row(3, 24, [1, 2, 3]),  # all 24 of the first, of which the last block is computed again
        row(4, 40, [1, 2, 3, 4, 5]),
        row(5, 40, [8, 2, 3, 4, 5]),  # another prompt from the first block on
        row(6, 41, [1, 2, 3, 4, 5, 6]),
    )
    table = replay(path, 7.0)
    engine = run(engine_class, cluster(), table, 20 * PS_PER_S)
    assert engine.conservation()[RequestState.FINISHED] == 7
    assert column(engine, "cached_tokens") == [0, 16, 16, 20, 24, 0, 40]


# ---- parts, copies, rounds and windows of a trace ------------------------------------------------


def random_trace(path: Path, seed: int) -> list[list[int]]:
    """A trace in which much is shared; the ids of each row. A rest that differs in length has another id."""
    rng = np.random.default_rng(seed)
    known: dict[Any, int] = {}
    prompts: list[list[int]] = []
    rows, all_ids = [], []
    for r in range(12):
        begin = prompts[rng.integers(len(prompts))] if prompts and rng.random() < 0.8 else []
        text = [
            *begin[: rng.integers(len(begin) + 1)],
            *rng.integers(1000, size=rng.integers(1, 20)).tolist(),
        ]
        prompts.append(text)
        paths = [tuple(text[: k + BLOCK]) for k in range(0, len(text), BLOCK)]
        ids = [known.setdefault(p, len(known)) for p in paths]
        rows.append(row(r, len(text), ids, output=int(rng.integers(0, 4) if r else 1)))
        all_ids.append(ids if rows[-1]["output_length"] else [])
    lines(path, *rows)
    return [ids for ids in all_ids if ids]


CHANGES: list[dict[str, Any]] = [
    {},
    {"rate_per_s": 0.3, "rescale": "time"},
    {"rate_per_s": 3.0, "rescale": "time"},
    {"rate_per_s": 0.5, "rescale": "sample"},
    {"rate_per_s": 2.6, "rescale": "sample", "jitter_s": 4.0},
    {"from_s": 3.0, "to_s": 9.0},
    {"start_s": 5.0},
    {"start_s": "random", "from_s": 2.0, "rate_per_s": 1.7, "rescale": "sample"},
    {"lengths": {"kind": "trace", "max_input_tokens": 11}},
]  # fmt: skip


@pytest.mark.parametrize("changes", CHANGES)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_what_is_shared_stays_shared(tmp_path_factory, changes, seed):
    """Two requests have as many tokens in common as their rows have, if they are of the same copy."""
    path = tmp_path_factory.mktemp("t") / "t.jsonl"
    ids = random_trace(path, seed)
    table = replay(path, 30.0, seed, **changes)
    assert table.prefixes is not None
    assert table.prefixes.name.tolist() == list(range(len(table)))
    trace = read_trace(path, hash_block_tokens=BLOCK)
    # Rows are found again by their lengths: those that could be two rows are left alone.
    most = 11 if "lengths" in changes else 10**6
    lengths = list(
        zip(
            np.minimum(trace.input_tokens, most).tolist(), trace.output_tokens.tolist(), strict=True
        )
    )
    row_of = [
        lengths.index(pair) if lengths.count(pair) == 1 else None
        for pair in zip(table.input_tokens.tolist(), table.output_tokens.tolist(), strict=True)
    ]
    once = "sample" not in changes.values() and "rate_per_s" not in changes
    for a in range(len(table)):
        for b in range(a):
            p, q = row_of[a], row_of[b]
            if p is None or q is None:
                continue
            shared = in_common(table, a, b)
            blocks = next(
                (k for k, (x, y) in enumerate(zip(ids[p], ids[q], strict=False)) if x != y),
                min(len(ids[p]), len(ids[q])),
            )
            by_ids = min(BLOCK * blocks, int(table.input_tokens[a]), int(table.input_tokens[b]))
            assert shared in (0, by_ids)
            if once and table.arrival_ps[a] - table.arrival_ps[b] == (p - q) * PS_PER_S:
                assert shared == by_ids  # of one round, if it does not turn in between


def test_copies_share_among_themselves(tmp_path):
    """Twice the requests are twice the users, of whom none has the prompts of another one."""
    path = lines(
        tmp_path / "t.jsonl", row(0, 24, [1, 2, 3]), row(5, 24, [1, 2, 4]), row(9, 16, [1, 2])
    )
    table = replay(path, 12.0, rate_per_s=0.5, rescale="sample", jitter_s=0.001)
    assert len(table) == 6
    shared = [[in_common(table, a, b) for b in range(6)] for a in range(6)]
    a, b = (0, 2, 4), (1, 3, 5)
    assert {shared[x][y] for x in a for y in b} == {0}
    assert [shared[x][y] for x, y in ((0, 2), (0, 4), (2, 4), (1, 3), (1, 5), (3, 5))] == [16] * 6


def test_others_still_share_what_is_left_out(tmp_path, engine_class: Engine):
    """The first request made both blocks, and is cut away; the third one has one of them."""
    path = lines(
        tmp_path / "t.jsonl", row(0, 24, [1, 2, 3]), row(5, 24, [1, 2, 4]), row(7, 24, [1, 2, 5])
    )
    table = replay(path, 5.0, from_s=4.0)
    assert in_common(table, 0, 1) == 16
    engine = run(engine_class, cluster(), table, 20 * PS_PER_S)
    assert column(engine, "cached_tokens") == [0, 16]


def test_an_owner_that_comes_late(tmp_path):
    """A copy may be moved behind one that begins like it."""
    path = lines(
        tmp_path / "t.jsonl", row(0, 24, [1, 2, 3]), row(0.001, 24, [1, 2, 4]), row(1, 8, [9])
    )
    for seed in range(50):
        table = replay(path, 1.5, seed, rate_per_s=4.0, rescale="sample", jitter_s=1.0)
        assert table.prefixes is not None
        if any(owner < 0 for owner in table.prefixes.owner):
            break
    assert any(owner < 0 for owner in table.prefixes.owner)
    long = np.flatnonzero(table.input_tokens == 24)
    sharing = [sum(in_common(table, a, b) == 16 for b in long if b != a) for a in long]
    assert set(sharing) == {1}  # each with one other one, of the same copy


# ---- a CSV's conversations -----------------------------------------------------------------------


def test_conversations_of_a_csv(tmp_path):
    """The third row is a turn after the first, the fourth has lost its history; the last has none."""
    path = tmp_path / "c.csv"
    path.write_text(
        "arrival_time_s,input_tokens,output_tokens,conversation\n"
        "0,10,5,a\n1,10,5,\n2,18,4,a\n3,9,6,a\n4,30,1,a\n5,12,1,\n"
    )
    trace = read_trace(path)
    assert trace.prefixes is not None
    spans = [trace.prefixes.spans(r) for r in range(6)]
    assert spans == [[], [], [(0, 15)], [], [(3, 15)], []]
    table = replay(path)
    assert table.prefixes is not None
    assert [table.prefixes.spans(r) for r in range(6)] == spans


# ---- generated turns and system prompts ----------------------------------------------------------


def test_prompts_by_hand():
    """Messages of 10, 20, 30 and 8 tokens with answers of 5, and room for 60 besides a system prompt of 7."""
    turns = Turns(np.array([0, 10, 20, 30, 5]), np.array([0, 0, 0, 0, 1]), np.zeros(5, np.int64))
    messages = np.array([10, 20, 30, 8, 100], np.int32)
    answers = np.array([5, 5, 5, 5, 5], np.int32)
    system = SystemPromptsConfig(n=1, tokens=7)
    rng = np.random.default_rng(0)
    prompts = draw_prompts(turns, messages, answers, 67, system, rng)
    # 10 | 10 5 20 | 20 5 30, without the first turn | 30 5 8, without the first two | cut to 55
    assert prompts.input_tokens.tolist() == [17, 42, 62, 50, 62]
    assert prompts.order.tolist() == [0, 4, 1, 2, 3]
    spans = [prompts.prefixes.spans(r) for r in range(5)]
    assert spans == [[(-2, 7)], [(-2, 7)], [(-2, 7), (0, 22)], [(-2, 7)], [(-2, 7)]]
    alone = draw_prompts(turns, messages, answers, 1000, None, rng)
    assert alone.input_tokens.tolist() == [10, 35, 70, 83, 100]
    spans = [alone.prefixes.spans(r) for r in range(5)]
    assert spans == [[], [], [(0, 15)], [(0, 15), (2, 40)], [(0, 15), (2, 40), (3, 75)]]


CHAT: dict[str, Any] = {
    "name": "chat",
    "llm": "m",
    "slo_class": "c",
    "rate_per_s": 4.0,
    "lengths": "sharegpt-single-turn",
    "turns": {"mean": 3.5, "gap_mean_s": 60, "max_context_tokens": 6000},
    "system_prompts": {"n": 4, "tokens": 500, "zipf": 1.0},
}


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    mean=st.sampled_from([1.0, 2.0, 6.0]),
    gap=st.sampled_from([1.0, 60.0, 2000.0]),
    limit=st.sampled_from([900, 3000, 100_000]),
    system=st.sampled_from([None, {"n": 3, "tokens": 500}]),
)
def test_a_turn_begins_like_all_of_the_turn_before(seed, mean, gap, limit, system):
    turns = {"mean": mean, "gap_mean_s": gap, "max_context_tokens": limit}
    table = generate(300.0, seed, {**CHAT, "turns": turns, "system_prompts": system})
    assert table.prefixes is not None
    inputs, whole = table.input_tokens, table.input_tokens + table.output_tokens
    assert (whole <= limit).all()
    begin = 0 if system is None else 500
    followed: list[int] = []
    for r in range(len(table)):
        spans = table.prefixes.spans(r)
        if system is not None:
            assert spans[0][0] <= -2
            assert spans.pop(0)[1] == 500
        if spans:
            before = spans[-1][0]
            followed.append(before)
            assert table.arrival_ps[before] < table.arrival_ps[r]
            assert spans[-1][1] == whole[before] < inputs[r]
            assert table.prefixes.spans(before)[-len(spans) + 1 :] == spans[:-1] or len(spans) == 1
        else:
            assert inputs[r] > begin
    assert len(set(followed)) == len(followed)  # no turn has two next ones


def test_the_rate_is_that_of_requests():
    """Ten hours at 4/s in conversations of 3.5: the number spreads more widely than a Poisson number."""
    table = generate(36_000.0, 1, CHAT)
    n = len(table)
    # A geometric number of turns has a second moment of (2 - p) / p^2.
    spread = (36_000 * 4 / 3.5 * (2 - 1 / 3.5) * 3.5**2) ** 0.5
    assert abs(n - 144_000) < 4 * spread
    first = np.bincount((table.arrival_ps // (3600 * PS_PER_S)).astype(int), minlength=10)
    assert abs(first[0] - n / 10) < 4 * spread / 10**0.5  # as busy at the start as later
    assert table.prefixes is not None
    opening = [table.prefixes.spans(r) for r in range(n)]
    alone = [spans[0][0] for spans in opening if len(spans) == 1]
    shares = np.bincount(-2 - np.array(alone), minlength=4) / len(alone)
    assert np.abs(shares - np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (25 / 12)).max() < 0.01


def test_a_busier_service_has_more_conversations():
    """The same length of conversations and the same number of system prompts."""
    workload = WorkloadConfig(streams=(StreamConfig(**CHAT),))
    tables = [
        generate_requests(
            workload.scaled(scale),
            classes=("c",),
            llms=("m",),
            horizon_s=5000.0,
            rng=np.random.default_rng(0),
        )
        for scale in (1.0, 3.0)
    ]
    assert len(tables[1]) == pytest.approx(3 * len(tables[0]), rel=0.05)
    shares = [t.prefixes.shared_tokens.sum() / t.input_tokens.sum() for t in tables]
    assert shares[1] == pytest.approx(shares[0], abs=0.01)


def test_system_prompts_without_turns():
    plain = {key: value for key, value in CHAT.items() if key not in ("turns", "system_prompts")}
    table, bare = (
        generate(60.0, 3, {**plain, "system_prompts": {"n": 2, "tokens": 100}}),
        generate(60.0, 3, plain),
    )
    assert bare.prefixes is None
    assert (table.input_tokens - 100 == bare.input_tokens).all()
    assert (table.predicted_output_tokens == bare.predicted_output_tokens).all()
    assert table.prefixes is not None
    assert {table.prefixes.spans(r)[0][1] for r in range(len(table))} == {100}


FLAT = {"kind": "hourly", "table": "sageserve-week", "series": "flat"}
STREAMS: dict[str, list[dict[str, Any]]] = {
    "turns beside a plain stream": [CHAT, {**CHAT, "name": "o", "turns": None, "system_prompts": None}],
    "two with turns": [CHAT, {**CHAT, "name": "o", "region": {"east": 1, "west": 2}}],
    "hour by hour": [
        {**CHAT, "arrivals": FLAT},
        {**CHAT, "name": "o", "turns": None, "arrivals": FLAT},
    ],
    "window by window": [{**CHAT, "arrivals": {"kind": "days", "table": "servegen-m-small"}}],
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("chunk_s", [70.0, 1800.0])
def test_pieces_are_the_whole(name, chunk_s):
    workload = WorkloadConfig(streams=tuple(StreamConfig(**stream) for stream in STREAMS[name]))

    def given() -> dict[str, Any]:
        rng = np.random.default_rng(5)
        return {"classes": ("c",), "llms": ("m",), "horizon_s": 4000.0, "rng": rng}

    whole = generate_requests(workload, **given())
    pieces = [chunk.requests for chunk in request_chunks(workload, **given(), chunk_s=chunk_s)]
    together = pieces[0]
    for piece in pieces[1:]:
        together = together.followed_by(piece)
    assert whole.prefixes is not None
    assert together.prefixes is not None
    assert len(whole) > 1000
    for field in ("name", "first", "owner", "end"):
        assert (getattr(whole.prefixes, field) == getattr(together.prefixes, field)).all()
    assert (whole.input_tokens == together.input_tokens).all()
    assert (whole.arrival_ps == together.arrival_ps).all()
    for r in range(len(whole)):
        for owner, _ in whole.prefixes.spans(r):
            assert owner < whole.prefixes.name[r]


def test_streams_do_not_share():
    table = generate(400.0, 0, CHAT, {**CHAT, "name": "other"})
    assert table.prefixes is not None
    prompts = {owner for owner in table.prefixes.owner.tolist() if owner < 0}
    assert prompts == set(range(-9, -1))


def test_a_conversation_has_one_region():
    table = generate(400.0, 0, {**CHAT, "region": {"east": 1, "west": 2}})
    assert table.prefixes is not None
    for r in range(len(table)):
        spans = table.prefixes.spans(r)
        if len(spans) > 1:
            assert table.region[spans[-1][0]] == table.region[r]
    assert set(table.region.tolist()) == {0, 1}


def test_a_stream_with_turns_leaves_the_others_as_they_are():
    other = {**CHAT, "name": "other", "turns": None, "system_prompts": None, "slo_class": "c"}
    both, alone = generate(200.0, 4, CHAT, other), generate(200.0, 4, other)
    assert both.prefixes is not None
    mine = np.isin(both.arrival_ps, alone.arrival_ps)
    assert (both.input_tokens[mine] == alone.input_tokens).all()


def test_a_stream_without_requests():
    table = generate(0.001, 0, {**CHAT, "rate_per_s": 1e-9})
    assert len(table) == 0
    assert table.prefixes is not None


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"turns": {"mean": 0.5}}, "turns.mean\n.*greater than or equal to 1"),
        ({"turns": {"gap_mean_s": 0}}, "turns.gap_mean_s"),
        ({"turns": {"max_context_tokens": 501}}, r"system_prompts.tokens = 500: must be at most 499"),
        ({"system_prompts": {"n": 0}}, "system_prompts.n"),
        ({"system_prompts": {"zipf": -1}}, "system_prompts.zipf"),
        ({"arrivals": {"kind": "trace", "path": "x"}}, "turns: not with arrivals that replay a trace"),
        (
            {"arrivals": {"kind": "trace", "path": "x"}, "turns": None},
            "system_prompts: not with arrivals that replay a trace",
        ),
        ({"arrivals": {"kind": "trace", "path": "x", "hash_block_tokens": 0}}, "hash_block_tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be(changes, says):
    with pytest.raises(ValueError, match=f"(?s){says}"):
        StreamConfig(**{**CHAT, **changes})


def test_turns_find_their_history(engine_class: Engine):
    """Without evictions, a turn finds all full blocks of what went before, if that has been computed."""
    stream = {
        **CHAT,
        "lengths": {"kind": "fixed", "input_tokens": 9, "output_tokens": 6},
        "system_prompts": {"n": 2, "tokens": 10},
        "rate_per_s": 0.5,
        "turns": {"mean": 3, "gap_mean_s": 20},
    }
    table = generate(60.0, 2, stream)
    engine = run(engine_class, cluster(), table, 200 * PS_PER_S)
    assert engine.conservation()[RequestState.FINISHED] == len(table)
    assert table.prefixes is not None
    seen: set[int] = set()
    expected = []
    for r in range(len(table)):
        owner, end = table.prefixes.spans(r)[-1]
        # The KV of a last token is never made.
        computed = end - 1 if owner >= 0 else (end if owner in seen else 0)
        seen |= {table.prefixes.spans(r)[0][0]}
        expected.append(computed // 4 * 4)
    assert column(engine, "cached_tokens") == expected
    assert max(len(table.prefixes.spans(r)) for r in range(len(table))) > 2


def test_spans_of_a_table_that_is_built():
    """`RequestTable.build` and a replay say the same."""
    prefixes = spans_of([-1, 0], [0, 5], np.array([5, 9]), np.array([1, 1]))
    assert isinstance(prefixes, Prefixes)
    table = RequestTable.build([0.0, 1.0], [5, 9], [1, 1], prefix_of=[-1, 0], prefix_tokens=[0, 5])
    assert table.prefixes is not None
    assert table.prefixes.spans(1) == prefixes.spans(1) == [(0, 5)]
    assert replace(table, prefixes=None).prefixes is None
    assert TurnsConfig().mean == 3.5


def test_what_a_cache_without_limits_would_find():
    """0, 1 and 3 begin like a prompt of theirs, of which 3 has more than anybody before; 2 like all of 1."""
    table = RequestTable.build(
        [0, 1, 2, 3, 4],
        [8, 8, 20, 30, 25],
        [4, 4, 4, 4, 4],
        prefix_of=[-2, -2, 1, -2, 3],
        prefix_tokens=[5, 6, 12, 9, 20],
    )
    assert table.prefixes is not None
    assert table.prefixes.shared_tokens.tolist() == [0, 5, 12, 6, 20]
    assert table.take(np.array([2, 4])).prefixes.shared_tokens.tolist() == [0, 6]


def test_what_came_before_is_counted_in_whole_prompts():
    """Counts of the history know the mean length of prompts with their conversations, not of messages."""
    stream = StreamConfig(**{**CHAT, "arrivals": {"kind": "days", "table": "servegen-m-small"}})
    table = generate_requests(
        WorkloadConfig(streams=(stream,)),
        classes=("c",),
        llms=("m",),
        horizon_s=6000.0,
        rng=np.random.default_rng(0),
        history_s=1200.0,
    )
    assert table.past is not None
    mean = table.past.input_tokens.sum() / table.past.requests.sum()
    assert mean == pytest.approx(table.input_tokens.mean(), rel=0.05)
