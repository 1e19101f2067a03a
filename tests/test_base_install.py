"""Commands on an install without extras: what can be done is done, what is missing is named in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmscale_env._cli import EXTRA_OF

WITHOUT = """
import runpy, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
runpy.run_module({module!r}, run_name="__main__")
"""


def run_without_extras(module: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    names = {*EXTRA_OF, "onnx", "onnxruntime"}
    code = WITHOUT.format(names=names, module=module)
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


def test_evaluate_prints_its_table_and_names_what_the_picture_needs(tmp_path: Path):
    words = ["env=burst-multicast", "policies=static", "episodes=1", "scenario.horizon_s=20"]
    done = run_without_extras("agents.evaluate", *words, folder=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("policy")
    assert "pip install 'llmscale[plots]'" in done.stderr
    assert "Traceback" not in done.stderr
    found = {path.name for path in tmp_path.rglob("*.*") if path.is_file()}
    assert {"evaluation.csv", "summary.csv", "evaluation.json"} <= found
    assert "comparison.png" not in found


@pytest.mark.parametrize(
    "module, words, extra",
    [
        ("agents.train", ["env=mixed-slo"], "train"),
        ("experiments.worlds", ["env=burst-multicast", "scale=quick"], "tune"),
        ("experiments.capacity", ["rate_per_s=4", "slo=ttft:2,itl:0.1", "tp=1"], "forecast"),
    ],
)
def test_what_is_missing_is_named_in_one_line(
    module: str, words: list[str], extra: str, tmp_path: Path
):
    done = run_without_extras(module, *words, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(f"pip install 'llmscale[{extra}]'\n")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
