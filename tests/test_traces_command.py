"""`python -m llmscale_env.traces`: statistics, list, tables, and downloads from a local server."""

from __future__ import annotations

import hashlib
import http.server
import json
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmscale_env import traces
from llmscale_env.workload import fetch as fetch_module
from llmscale_env.workload.fetch import SOURCES, FetchError, fetch
from llmscale_env.workload.readers import read_trace
from llmscale_env.workload.stats import spearman, trace_stats, window_stats

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "traces"
NAME = "azure-code-2023"
FILE = "AzureLLMInferenceTrace_code.csv"
BODY = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(
        f"2023-11-16 18:17:{k // 1000:02d}.{k % 1000:03d}0000,{k + 1},7\n" for k in range(9000)
    )
).encode()
SHA = hashlib.sha256(BODY).hexdigest()


# ---------------------------------------------------------------- statistics


def test_window_statistics_by_hand():
    # 10 s windows hold 2, 4, 0, 1 and (only partly seen) 1 requests.
    times = np.array([0, 9.0, 10, 11, 12, 19, 35, 41])
    w = window_stats(times, 10.0)
    assert w.ratio == (1.0, pytest.approx(1.8), pytest.approx(1.98), 2.0)  # of 2 and 0
    assert w.empty_share == 0.25
    assert w.peak_over_mean == pytest.approx(4 / 1.75)
    assert w.dispersion == pytest.approx(np.var([2, 4, 0, 1]) / 1.75)
    assert window_stats(times, 30.0) is None


def test_spearman_by_hand():
    assert spearman(np.array([1, 2, 3]), np.array([10, 20, 900])) == pytest.approx(1.0)
    # Ranks 1, 2.5, 2.5 against 3, 1, 2.
    assert spearman(np.array([1, 5, 5]), np.array([9, 2, 4])) == pytest.approx(-0.866025, abs=1e-6)
    assert np.isnan(spearman(np.array([1, 1]), np.array([1, 2])))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the raw traces are not here")
@pytest.mark.parametrize(
    "name, rate, cv, ratios, empty, dispersion, peak, rho",
    [
        ("azure_conv_2023", 5.53, 1.09, (1.00, 1.27, 1.53, 1.84), 0.0, 5.2, 1.64, 0.07),
        ("azure_code_2023", 2.57, 13.15, (0.47, 5.15, 37.53, 52.0), 0.48, 99.3, 11.69, -0.02),
    ],
)
def test_statistics_of_the_azure_traces_are_the_published_ones(
    name, rate, cv, ratios, empty, dispersion, peak, rho
):
    trace = read_trace(SHARED / f"{name}.csv.gz")
    stats = trace_stats(trace.arrival_ps, trace.input_tokens, trace.output_tokens)
    assert stats.rate_per_s == pytest.approx(rate, abs=0.005)
    assert stats.cv == pytest.approx(cv, abs=0.005)
    assert stats.windows[0].ratio == pytest.approx(ratios, abs=0.005)
    assert stats.windows[0].empty_share == pytest.approx(empty, abs=0.005)
    assert stats.windows[0].dispersion == pytest.approx(dispersion, abs=0.05)
    assert stats.windows[0].peak_over_mean == pytest.approx(peak, abs=0.005)
    assert stats.spearman == pytest.approx(rho, abs=0.005)


def test_stats_of_a_file_with_a_picture(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text(
        "arrival_time_s,input_tokens,output_tokens\n"
        + "".join(f"{k},{100 + k},{50}\n" for k in range(200))
        + "200,5,0\n"
    )
    picture = tmp_path / "out" / "t.png"
    assert traces.main(["stats", str(path), f"plot={picture}"]) == 0
    out = capsys.readouterr().out
    assert "(plain); 1 rows with no output tokens left out" in out
    assert "CV of gaps        0.00" in out
    assert "rate              1.005 requests/s" in out
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", ["azure-conv-2023", "reasoning", "mix:reasoning", "code-burst"])
def test_stats_of_what_ships(name, capsys, tmp_path):
    assert traces.main(["stats", name, f"plot={tmp_path / 'p.png'}"]) == 0
    assert "requests  " in capsys.readouterr().out
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_list_names_everything(capsys):
    assert traces.main(["list"]) == 0
    out = capsys.readouterr().out
    for name in (
        "azure-conv-2023",
        "sharegpt-single-turn",
        "mixed-slo-hours",
        "burstgpt-1",
        "CC-BY",
    ):
        assert name in out


@pytest.mark.parametrize(
    "words, message",
    [
        (["stat"], "unknown command 'stat' (did you mean stats?)"),
        (["stats"], "a name is missing"),
        (["stats", "azure-conv-2024x"], "did you mean azure-conv-2023?"),
        (["stats", "chat", "plt=x.png"], "unknown argument 'plt=x.png'"),
        (["stats", "chat", "plot=x.txt"], "must end in .png"),
        (["stats", __file__, "format=csv"], "format = 'csv'"),
        (["stats", __file__, "sort=yes"], "sort = 'yes': must be true or false"),
        (["stats", __file__], "no known trace format"),
        (["fetch", "azure"], "unknown trace 'azure'"),
        (["build-tables"], "source=DIR is missing"),
        (["build-tables", "source=/nonexistent"], "azure_conv_2023.csv.gz is missing"),
    ],
)
def test_slips_are_one_line_and_code_2(words, message, refused):
    error = refused(traces.main, words)
    assert message in error
    assert error.startswith("traces: ")


def test_the_module_runs_as_a_command():
    command = [sys.executable, "-m", "llmscale_env.traces"]
    bad = subprocess.run([*command, "lst"], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stderr.count("\n"), "Traceback" in bad.stderr) == (2, 1, False)
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert "fetch NAME" in shown.stdout


# ---------------------------------------------------------------- downloads


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves BODY with ranges; `plan` says what goes wrong."""

    def do_GET(self):
        server = self.server
        server.seen.append(self.headers.get("Range"))
        if self.path != f"/traces/{FILE}":
            self.send_error(404)
            return
        start = 0
        wanted = self.headers.get("Range")
        if wanted and server.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(server.body):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        if server.told:
            self.send_header("Content-Length", str(len(server.body) - start))
        self.end_headers()
        rest = server.body[start:]
        if server.breaks > 0:
            server.breaks -= 1
            self.wfile.write(rest[: len(rest) // 2])
            return
        self.wfile.write(rest)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as running:
        running.body, running.breaks, running.ranges, running.seen = BODY, 0, True, []
        running.told = True
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def get(server, to, name=NAME, say=lambda line: None):
    base = f"http://127.0.0.1:{server.server_port}/traces"
    return fetch(name, to, base_url=base, progress=False, say=say)


def pin(monkeypatch, **changes):
    monkeypatch.setitem(fetch_module.SOURCES, NAME, replace(SOURCES[NAME], **changes))


def test_fetch_remembers_the_checksum_on_first_use(server, tmp_path):
    said = []
    path = get(server, tmp_path, say=said.append)
    assert path == tmp_path / FILE
    assert path.read_bytes() == BODY
    assert sorted(p.name for p in tmp_path.iterdir()) == [FILE, "fetched.json"]
    assert json.loads((tmp_path / "fetched.json").read_text()) == {FILE: SHA}
    assert SHA in said[0]
    assert "publishes none" in said[0]
    # The second call downloads nothing.
    get(server, tmp_path)
    assert len(server.seen) == 1
    # The file changes on the server: noticed, refused, removed.
    path.unlink()
    server.body = BODY.replace(b",7\n", b",8\n")
    with pytest.raises(FetchError, match=r"SHA-256 is .*the one remembered in fetched.json"):
        get(server, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["fetched.json"]


def test_fetch_checks_a_published_checksum(server, tmp_path, monkeypatch):
    pin(monkeypatch, sha256=SHA, size_bytes=len(BODY))
    assert get(server, tmp_path).read_bytes() == BODY
    wrong = tmp_path / "wrong"
    pin(monkeypatch, sha256="0" * 64)
    with pytest.raises(FetchError, match=rf"SHA-256 is {SHA}, but the one published is 000"):
        get(server, wrong)
    assert list(wrong.iterdir()) == []
    pin(monkeypatch, sha256=SHA, size_bytes=5)
    with pytest.raises(FetchError, match=rf"{len(BODY)} bytes offered, 5 expected"):
        get(server, wrong)
    assert list(wrong.iterdir()) == []


def test_a_damaged_copy_on_disk_is_not_taken_for_good(server, tmp_path):
    get(server, tmp_path)
    (tmp_path / FILE).write_bytes(BODY[:100])
    with pytest.raises(FetchError, match="move it away"):
        get(server, tmp_path)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_is_resumed(server, tmp_path, ranges):
    server.breaks, server.ranges = 2, ranges
    assert get(server, tmp_path).read_bytes() == BODY
    asked = [None, f"bytes={len(BODY) // 2}-"]
    assert server.seen[:2] == asked
    assert not list(tmp_path.glob("*.part"))


def test_an_interrupted_download_goes_on_in_the_next_call(server, tmp_path):
    server.breaks = 3
    with pytest.raises(FetchError, match=r"the connection broke 3 times.*\.part is kept"):
        get(server, tmp_path)
    part = tmp_path / f"{FILE}.part"
    kept = part.stat().st_size
    assert 0 < kept < len(BODY)
    assert not (tmp_path / FILE).exists()
    assert get(server, tmp_path).read_bytes() == BODY
    assert server.seen[-1] == f"bytes={kept}-"


def test_ctrl_c_keeps_what_has_arrived(server, tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch_module, "_check_structure", interrupted)
    base = f"base_url=http://127.0.0.1:{server.server_port}/traces"
    assert traces.main(["fetch", NAME, f"to={tmp_path}", base]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == [f"{FILE}.part"]


def test_a_complete_part_is_taken_over(server, tmp_path):
    (tmp_path / f"{FILE}.part").write_bytes(BODY)
    assert get(server, tmp_path).read_bytes() == BODY


def test_what_is_no_trace_is_removed(server, tmp_path):
    server.body = b"<html>please sign in</html>"
    with pytest.raises(
        FetchError, match=r"no azure trace \(.*column 'timestamp'.* sent it; removed"
    ):
        get(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("told", [True, False])
def test_what_does_not_end_is_cut_off_and_removed(server, tmp_path, monkeypatch, told):
    """With a length that is offered, nothing is read; without one, no more than the limit."""
    monkeypatch.setattr(fetch_module, "_MOST_BYTES", len(BODY) - 1)
    server.told = told
    said = f"{len(BODY):,} bytes offered; at most" if told else "sends more than .* bytes; removed"
    with pytest.raises(FetchError, match=said):
        get(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_other_addresses_than_those_of_the_web_are_refused(tmp_path):
    (tmp_path / FILE).write_bytes(BODY)
    for base in (f"file://{tmp_path}", str(tmp_path), "ftp://127.0.0.1"):
        with pytest.raises(FetchError, match="must begin with https:// or http://"):
            fetch(NAME, tmp_path / "to", base_url=base, progress=False)
    assert not (tmp_path / "to").exists()


def test_what_lies_there_is_read_before_it_is_trusted(server, tmp_path):
    (tmp_path / FILE).write_text("<html>please sign in</html>")
    with pytest.raises(FetchError, match=r"no azure trace .*: move it away to fetch it"):
        get(server, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [FILE]
    assert server.seen == []


def test_not_found_no_network_and_a_damaged_ledger(server, tmp_path, capsys):
    base = f"base_url=http://127.0.0.1:{server.server_port}"
    assert traces.main(["fetch", NAME, f"to={tmp_path}", base]) == 1
    err = capsys.readouterr().err
    assert "HTTP 404 (the file is not there any more)" in err
    assert err.count("\n") == 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        # Bound and without a listener for as long as it is asked, so that nobody else can serve there.
        base = f"base_url=http://127.0.0.1:{free.getsockname()[1]}"
        assert traces.main(["fetch", NAME, f"to={tmp_path}", base]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "fetched.json").write_text("{")
    with pytest.raises(FetchError, match=r"fetched.json is damaged"):
        get(server, tmp_path)


def test_the_command_draws_a_progress_bar(server, tmp_path, capsys):
    base = f"base_url=http://127.0.0.1:{server.server_port}/traces"
    assert traces.main(["fetch", NAME, f"to={tmp_path}", base]) == 0
    captured = capsys.readouterr()
    assert FILE in captured.err
    assert "100%" in captured.err
    assert SHA in captured.out


def test_sources_are_complete():
    for source in SOURCES.values():
        assert source.url.startswith("https://")
        assert source.licence
        assert (source.sha256 is None) == (source.size_bytes is None)
        assert source.sha256 is None or len(source.sha256) == 64


def test_stats_say_what_prompts_share(tmp_path, capsys):
    path = tmp_path / "d.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 60, "output_length": 1, "hash_ids": [1, 2, 3, 4]}\n'
        '{"timestamp": 9, "input_length": 40, "output_length": 1, "hash_ids": [1, 2, 5]}\n'
    )
    assert traces.main(["stats", str(path), "hash_block_tokens=16"]) == 0
    printed = capsys.readouterr().out
    assert "(mooncake); 32.0% of the prompt tokens are those of an earlier request\n" in printed
    assert traces.main(["stats", str(path)]) == 2
    assert "d.jsonl:1: hash_ids = [1, 2, 3, 4], 4 of them" in capsys.readouterr().err
    assert traces.main(["stats", "sharegpt", "hash_block_tokens=16"]) == 2
    assert "hash_block_tokens = '16': is for a trace's file" in capsys.readouterr().err
