"""Readers: the four formats, gzip, and every way a row can be wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmscale_env.workload.readers import detect_format, load_trace, only_llm, read_trace
from llmscale_env.workload.requests import PS_PER_S
from tests.refusals import refuses

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
2024-05-10 00:00:01+00:00,76,15
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
120,ChatGPT,0,20,20,API log
120,ChatGPT,0,0,0,API log
121.5,ChatGPT,10,20,30,API log
"""
BURSTGPT_3 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,a-1,1.5,ChatGPT,472,18,490,Conversation log
45,,2.5,GPT-4,1087,230,1317,Conversation log
"""
MOONCAKE = f"""{{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": {[*range(14)]}}}
{{"timestamp": 3000, "input_length": 13544, "output_length": 71, "hash_ids": {[0, *range(219, 245)]}}}

{{"timestamp": 3000, "input_length": 915, "output_length": 0, "hash_ids": []}}
"""
PLAIN = """arrival_time_s,input_tokens,output_tokens
100.5,10,5
101.25,20,6
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text, name, arrival_s, inputs, outputs",
    [
        (AZURE_2023, "azure", [0, 4.314579, 4.31941], [374, 396, 879], [44, 109, 55]),
        (AZURE_2024, "azure", [0, 0.007405, 0.99007], [2162, 2399, 76], [5, 6, 15]),
        (BURSTGPT, "burstgpt", [0, 40, 116.5], [472, 1087, 10], [18, 230, 20]),
        (BURSTGPT_3, "burstgpt", [0, 40], [472, 1087], [18, 230]),
        (MOONCAKE, "mooncake", [0, 3], [6758, 13544], [500, 71]),
        (PLAIN, "plain", [0, 0.75], [10, 20], [5, 6]),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_formats(tmp_path, text, name, arrival_s, inputs, outputs, zipped):
    path = tmp_path / ("t.csv.gz" if zipped else "t.csv")
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    assert detect_format(path) == name
    trace = read_trace(path)
    assert trace.format == name
    assert trace.arrival_ps.tolist() == [round(t * PS_PER_S) for t in arrival_s]
    assert trace.input_tokens.tolist() == inputs
    assert trace.output_tokens.tolist() == outputs
    assert read_trace(path, name).arrival_ps.tolist() == trace.arrival_ps.tolist()


def test_rows_without_tokens_are_dropped_and_counted(tmp_path):
    trace = read_trace(write(tmp_path / "b.csv", BURSTGPT))
    assert (trace.dropped_zero_output, trace.dropped_zero_input) == (2, 1)
    assert read_trace(write(tmp_path / "m.jsonl", MOONCAKE)).dropped_zero_output == 1


def test_names_of_llms(tmp_path):
    trace = read_trace(write(tmp_path / "b.csv", BURSTGPT))
    assert trace.llm is not None
    assert [trace.llm.names[k] for k in trace.llm.index] == ["ChatGPT", "GPT-4", "ChatGPT"]
    assert only_llm(trace, "GPT-4").input_tokens.tolist() == [1087]
    refuses(r"only_llm = 'GPT-5': .*\['ChatGPT', 'GPT-4'\]", only_llm, trace, "GPT-5")
    with pytest.raises(ValueError, match="does not name LLMs"):
        only_llm(read_trace(write(tmp_path / "p.csv", PLAIN)), "GPT-4")


def test_odd_but_good_files(tmp_path):
    windows = "\ufeff" + PLAIN.replace("\n", "\r\n")
    assert len(read_trace(write(tmp_path / "w.csv", windows))) == 2
    swapped = "Output_Tokens, arrival_time_s ,input_tokens,note\n5,1,10,x\n6,2,20,\n"
    trace = read_trace(write(tmp_path / "s.csv", swapped))
    assert trace.output_tokens.tolist() == [5, 6]
    assert len(read_trace(write(tmp_path / "e.csv", PLAIN.replace("101.25", "\n101.25")))) == 2
    assert len(read_trace(write(tmp_path / "one.csv", PLAIN), max_rows=1)) == 1
    assert len(read_trace(write(tmp_path / "m.jsonl", MOONCAKE), max_rows=1)) == 1


@pytest.mark.parametrize(
    "text, message",
    [
        (PLAIN + "x,5,6\n", r":4: arrival_time_s = 'x': expected seconds, as in 12.5,374,44"),
        (PLAIN + "nan,5,6\n", r":4: arrival_time_s = 'nan': expected seconds"),
        (PLAIN + ",5,6\n", r":4: arrival_time_s = '': expected seconds"),
        (PLAIN + "102,5.5,6\n", r":4: input_tokens = '5.5': expected a whole number of tokens"),
        (PLAIN + "102,5,-6\n", r":4: output_tokens = '-6': expected a whole number"),
        (PLAIN + "102,5,\n", r":4: output_tokens = '': expected a whole number"),
        (PLAIN + "102,5\n", r":4: expected 3 fields \(12.5,374,44\), got 2"),
        (PLAIN + "102,5,6,7\n", r":4: expected 3 fields"),
        (PLAIN + "102,5,6,7,8,9\n", r":4: expected 3 fields"),
        (PLAIN.split("\n")[0] + "\n1,1,024,44\n", r":2: expected 3 fields .*, got 4"),
        (PLAIN + "101,5,6\n", r":4: arrival -0.25 s from the one above it.*sort=true"),
        (AZURE_2023 + "yesterday,5,6\n", r":5: timestamp = 'yesterday': expected a time stamp"),
        (AZURE_2023 + ",5,6\n", r":5: timestamp = '': expected a time stamp"),
        (BURSTGPT + "130,GPT-4,ten,5,15,x\n", r":8: request tokens = 'ten': expected a whole"),
        (MOONCAKE + "{oops\n", r":5: expected a JSON object like"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 3}\n', r":5: expected a JSON object"),
        (MOONCAKE + "[1, 2, 3]\n", r":5: expected a JSON object"),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": 3, "output_length": 4}\n',
            r":5: arrival -2.999 s from the one above",
        ),
        ("arrival_time_s,input_tokens,output_tokens\n", r"no rows after the header"),
        ("arrival_time_s,input_tokens,output_tokens\n1,5,0\n", r"no row has both"),
        ("a,b\n1,2\n", r":1: no known trace format.*TIMESTAMP|timestamp,contexttokens"),
        ("", r":1: no known trace format"),
    ],
)
def test_bad_rows_name_the_line_and_what_was_expected(tmp_path, text, message):
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(ValueError, match=message) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_a_bad_row_deep_in_a_gzipped_file(tmp_path):
    rows = [f"{k},10,5" for k in range(5000)]
    rows[4321] = "4321,1O,5"
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(("\n".join([PLAIN.split("\n")[0], *rows]) + "\n").encode()))
    refuses(r":4323: input_tokens = '1O'", read_trace, path)
    path.write_bytes(path.read_bytes()[:2000])
    refuses("not a readable text file", read_trace, path)


def test_arrivals_that_go_backwards_are_sorted_on_request(tmp_path):
    path = write(tmp_path / "t.csv", PLAIN + "\n100,30,7\n100,40,8\n")
    refuses(r":5: arrival -1.25 s", read_trace, path)
    trace = read_trace(path, sort=True)
    assert trace.input_tokens.tolist() == [30, 40, 10, 20]
    assert trace.arrival_ps.tolist() == [0, 0, PS_PER_S // 2, 5 * PS_PER_S // 4]


def test_unknown_format_missing_column_missing_file(tmp_path):
    path = write(tmp_path / "t.csv", PLAIN)
    refuses(r"format = 'csv': must be one of \['auto', 'plain'", read_trace, path, "csv")
    refuses(r":1: column 'timestamp' is missing \(format azure\)", read_trace, path, "azure")
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none.csv")


def test_a_trace_too_long_for_picoseconds(tmp_path):
    path = write(tmp_path / "t.csv", PLAIN + "20000000,5,6\n")
    refuses("span 231 days", read_trace, path)


def test_loading_is_cached_until_the_file_changes(tmp_path):
    path = write(tmp_path / "t.csv", PLAIN)
    assert load_trace(path) is load_trace(path)
    write(path, PLAIN + "103,5,6\n")
    assert len(load_trace(path)) == 3


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**5), st.integers(0, 10**5)),
        min_size=1,
        max_size=40,
    )
)
def test_any_plain_file_comes_back(tmp_path_factory, rows):
    rows = sorted(rows, key=lambda row: row[0])
    path = tmp_path_factory.mktemp("t") / "t.csv"
    text = "\n".join(f"{us / 1e6:.6f},{i},{o}" for us, i, o in rows)
    write(path, "arrival_time_s,input_tokens,output_tokens\n" + text + "\n")
    kept = [(us - rows[0][0], i, o) for us, i, o in rows if i and o]
    if not kept:
        refuses("no row has both", read_trace, path)
        return
    trace = read_trace(path)
    found = np.stack([trace.arrival_ps // 10**6, trace.input_tokens, trace.output_tokens], axis=1)
    assert found.tolist() == [list(row) for row in kept]
    assert trace.dropped_zero_output + trace.dropped_zero_input == len(rows) - len(kept)
