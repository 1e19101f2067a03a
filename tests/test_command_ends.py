"""How commands end when the world around them does: Ctrl-C while they import, closed pipes, full disks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_calibrate import own_csv
from tests.waiting import interruptible

ROOT = Path(__file__).resolve().parents[1]

INTERRUPTS = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
"""

FULL = """
import resource, runpy, signal, sys

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.argv = [{module!r}, *{words!r}]
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def run(
    *words: str, folder: Path, stdout: int = subprocess.PIPE, first: Path | None = None
) -> subprocess.CompletedProcess[str]:
    paths = [str(p) for p in (first, ROOT) if p is not None]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=env,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
        # The tests may run where interrupts are ignored, as in the background of a shell.
        preexec_fn=interruptible,
    )


@pytest.mark.parametrize(
    "module, during",
    [
        ("agents.train", "gymnasium"),
        ("baselines.tune", "baselines.make"),
        ("experiments.worlds", "baselines.tune"),
        ("llmscale_env.traces", "yaml"),
    ],
)
def test_an_interrupt_while_a_command_imports_is_one_line(module: str, during: str, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS.format(name=during))
    done = run("-m", module, "--help", folder=tmp_path, first=tmp_path)
    assert done.returncode == 130
    assert done.stderr == f"{module.rpartition('.')[2]}: interrupted\n"
    assert done.stdout == ""


def test_who_imports_the_package_keeps_its_own_interrupts(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import llmscale_env")
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    (tmp_path / "mine" / "work.py").write_text(code)
    assert run("-m", "mine.work", folder=tmp_path, first=tmp_path).stdout == "True\n"


def test_a_reader_that_goes_away_is_one_line(tmp_path: Path):
    reading, writing = os.pipe()
    os.close(reading)
    done = run("-m", "experiments.list", folder=tmp_path, stdout=writing)
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == "list: stopped: nothing more can be printed ([Errno 32] Broken pipe)\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_behind_what_is_printed_is_one_line(tmp_path: Path):
    full = os.open("/dev/full", os.O_WRONLY)
    done = run("-m", "experiments.list", folder=tmp_path, stdout=full)
    os.close(full)
    # 2 where it is a print that fails, which does not say whose file it is.
    assert done.returncode in (2, 141)
    assert done.stderr.startswith("list: ")
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_closed_standard_output_is_no_error(tmp_path: Path):
    code = "import os, runpy, sys; os.close(1); sys.stdout = None; sys.argv = ['list']; "
    code += "runpy.run_module('experiments.list', run_name='__main__')"
    done = run("-c", code, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


SHORT = ("env=burst-multicast", "references=none", "validation_episodes=1", "out=out")
TUNED = ("env=burst-multicast", "trials=1", "steps=64", "out=out")


@pytest.mark.parametrize(
    "limit, module, words, left",
    [
        (
            0,
            "llmscale_env.calibrate",
            ("csv=own.csv", "llm=mistral-7b", "gpu=a10", "tp=1", "out=out/a"),
            (),
        ),
        (4096, "agents.tune", TUNED, ("tune.yaml", "study.db")),
        pytest.param(0, "agents.tune", TUNED, (), marks=pytest.mark.slow),
        pytest.param(0, "agents.train", SHORT, (), marks=pytest.mark.slow),
        pytest.param(
            *(4096, "agents.train", SHORT, ("config.yaml", "run.json", "events.out")),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(0, "llmscale_env.traces", ("stats", "azure-conv-2023", "plot=out/a.png"), ()),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_full_disk_is_one_line(
    limit: int, module: str, words: tuple[str, ...], left: tuple[str, ...], tmp_path: Path
):
    own_csv(tmp_path / "own.csv")
    code = FULL.format(limit=limit, module=module, words=words)
    done = run("-B", "-c", code, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"{module.rpartition('.')[2]}: ")
    names = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [name for name in names if not name.startswith((".lock", *left))]
