"""`llmscale`, one command: its words, its help, and folders in which others have packages of our names."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from baselines.registry import POLICIES
from experiments.desk import warmup
from experiments.desk.command import WORDS, main
from llmscale_env import ENVIRONMENTS
from llmscale_env.scenarios import scenario_names
from tests.test_command_ends import INTERRUPTS
from tests.waiting import interruptible, printed

ROOT = Path(__file__).resolve().parents[1]

SCRIPT = """
import sys
from experiments.desk.command import main
if __name__ == "__main__":
    sys.exit(main())
"""
"""What an installer writes for the entry point."""


def llmscale(
    *words: str, folder: Path, first: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the installed script's twin in `folder`: as there, its own folder comes first in the path."""
    script = folder.parent / "bin" / "llmscale"
    script.parent.mkdir(exist_ok=True)
    script.write_text(SCRIPT)
    paths = [str(path) for path in (first, ROOT) if path is not None]
    return subprocess.run(
        [sys.executable, str(script), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        preexec_fn=interruptible,
    )


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    """A folder of somebody whose packages have our names, and cannot be imported."""
    folder = tmp_path / "theirs"
    for package in ("agents", "baselines", "experiments", "tests"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(f"raise RuntimeError('{package} of others')")
    (folder / "llmscale_env.py").write_text("raise RuntimeError('llmscale_env of others')")
    return folder


def test_the_entry_point_is_the_command():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["llmscale"].partition(":")
    assert getattr(importlib.import_module(module), name) is main


@pytest.mark.parametrize("word", WORDS)
def test_help_of_a_word_is_a_screen_with_three_examples(
    word: str, capsys: pytest.CaptureFixture[str]
):
    assert main([word, "--help"]) == 0
    shown = capsys.readouterr().out
    assert main(["help", word]) == 0
    assert capsys.readouterr().out == shown
    lines = shown.rstrip().splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100
    examples = lines[lines.index("Examples:") + 1 :]
    assert len(examples) >= 3
    assert all("llmscale " in line for line in examples if not line.startswith(" " * 8))
    assert sum(f"llmscale {word}" in line for line in examples) >= 2
    module = WORDS[word].module.removesuffix(".__main__").removesuffix(".command")
    assert f"python -m {module}" in shown


def test_help_lists_every_word_on_a_screen(capsys: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100
    assert {line.split()[0] for line in lines if line.startswith("    ")} >= set(WORDS)
    assert main([]) == 2
    assert capsys.readouterr().out == shown


def test_only_the_module_of_the_word_is_imported():
    heavy = ("numba", "pandas", "torch", "plotly", "agents", "baselines", "experiments.capacity")
    code = "import sys; from experiments.desk.command import main; main(['--help']); "
    code += f"print(*[m for m in {heavy} if m in sys.modules], sep='|')"
    assert printed(code).splitlines()[-1] == ""
    code = (
        "import sys; from experiments.desk.command import main; main(['cards', 'fits', 'llm=x']); "
    )
    code += "print('torch' in sys.modules, 'experiments.capacity' in sys.modules)"
    assert printed(code).splitlines()[-1] == "False False"


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["evalute"],
            "llmscale: 'evalute': unknown word (did you mean evaluate?); llmscale --help",
        ),
        (["--advise"], "llmscale: '--advise': unknown word; llmscale --help"),
        (["trace=my.csv"], "llmscale: 'trace=my.csv': unknown word; llmscale --help"),
        (["evaluate", "env=mixed-slow"], "evaluate: env = 'mixed-slow': "),
        (["traces", "stat"], "traces: unknown command 'stat' (did you mean stats?)"),
        (["warmup", "quick=true"], "warmup: unknown argument 'quick=true'"),
    ],
)
def test_slips_are_one_line(words: list[str], said: str, refused):
    assert refused(main, words).startswith(said)


def test_the_exit_code_is_the_words_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a load that no number of GPUs serves in time, capacity says 1."""
    monkeypatch.chdir(tmp_path)
    words = ["rate_per_s=4", "slo=ttft:0.0001,itl:0.0001", "attainment=0.5", "max_gpus=1", "tp=1"]
    assert main(["capacity", *words, "policy=jsq", "windows=2", "window_s=20"]) == 1


def test_the_version(capsys: pytest.CaptureFixture[str]):
    from llmscale_env import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"llmscale {__version__}\n"


def test_it_works_where_others_have_packages_of_our_names(taken: Path):
    done = llmscale("cards", "fits", "llm=llama-3.1-8b", "gpu=h100-80gb", folder=taken)
    assert (done.returncode, done.stderr) == (0, "")
    assert "llama-3.1-8b" in done.stdout


@pytest.mark.slow
def test_its_processes_work_there_too(taken: Path):
    words = ["env=burst-multicast", "policies=static,blitzscale", "episodes=4", "workers=2"]
    done = llmscale("evaluate", *words, "scenario.horizon_s=20", "out=results", folder=taken)
    assert done.returncode == 0, done.stderr
    assert "of others" not in done.stderr
    alone = llmscale("evaluate", *words[:-1], "scenario.horizon_s=20", "out=alone", folder=taken)
    assert alone.returncode == 0, alone.stderr
    rows = [(taken / name / "evaluation.csv").read_text() for name in ("results", "alone")]
    assert rows[0] == rows[1]


def test_an_interrupt_while_a_word_imports_is_one_line(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS.format(name="baselines.tune"))
    (tmp_path / "here").mkdir()
    done = llmscale("tune", "--help", folder=tmp_path / "here", first=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tune: interrupted\n")


# ---------------------------------------------------------------- warmup


def test_warmup_runs_every_kind_of_cluster():
    families = {POLICIES[policy].family for _, policy in warmup.CLUSTERS}
    assert families == {each.family for each in POLICIES.values()}
    assert {name for name, _ in warmup.CLUSTERS} <= set(scenario_names())
    assert set(warmup.ENVIRONMENTS) <= {entry.id for entry in ENVIRONMENTS}
    assert any(POLICIES[policy].plans for _, policy in warmup.CLUSTERS)


def test_warmup_says_what_it_has_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(warmup, "CLUSTERS", (("burst-multicast", "static"),))
    monkeypatch.setattr(warmup, "ENVIRONMENTS", ("llmscale/BurstMulticast-v0",))
    assert main(["warmup"]) == 0
    assert main(["warmup"]) == 0  # whatever there was to compile is compiled now
    out, error = capsys.readouterr()
    assert out.splitlines()[-1].startswith("nothing was left to compile")
    assert "kept in" in out
    assert error.count("compiling once") >= 2
