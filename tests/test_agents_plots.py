"""Pictures of runs: what can be read off them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.runs import plots
from agents.runs.files import write_csv
from llmscale_env.scenarios import load_scenario

SCENARIO = load_scenario("mixed-slo-hours")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures, before they are written."""
    figures: list[Any] = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: figures.append(figure) or path)
    return figures


def test_hard_episodes_do_not_widen_the_band(tmp_path: Path, drawn: list[Any]):
    metrics = [f"{name}/slo_attainment" for name in SCENARIO.class_groups]

    def row(policy: str, seed: int, reward: float, **more: float) -> dict[str, Any]:
        return {
            "policy": policy,
            "seed": seed,
            "reward": reward,
            **dict.fromkeys(metrics, 0.9),
            "gpu_hours": 1.0,
            **more,
        }

    hard = dict(enumerate((0.0, -50.0, -900.0, -7.0)))
    references = [row("static", seed, level - 3) for seed, level in hard.items()]
    learner = [
        row("ppo", seed, level - 2 + step / 100 + 0.1 * (-1) ** seed, timesteps=step)
        for step in (0, 100, 200)
        for seed, level in hard.items()
    ]
    write_csv(tmp_path / "references.csv", references)
    write_csv(tmp_path / "validation.csv", learner)
    plots.learning_curve(tmp_path, tmp_path / "curve.png", SCENARIO)
    axis = drawn[0].axes[0]
    curve = axis.lines[0].get_ydata()
    assert np.allclose(curve, np.mean(list(hard.values())) + np.array([-2, -1, 0]))
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert curve.min() - 0.5 < band.min() < curve.min() - 0.05
    assert curve.max() + 0.05 < band.max() < curve.max() + 0.5
    low, high = axis.get_ylim()
    assert low < curve.min() - 1
    assert curve.max() < high < curve.max() + 1


def test_long_names_do_not_overlap(tmp_path: Path, drawn: list[Any]):
    names = [f"policy-{k}" for k in range(12)]
    names[3] = "chiron-tuned:settings=baselines/tuned/at-99/chiron_mixed-slo-hours.yaml"
    figures = ("reward", "gpu_hours", "joint/slo_attainment")
    numbers = {f"{key}{end}": 0.5 for key in figures for end in ("", "/low", "/high")}
    summary = [{"policy": name, "episodes": 4, **numbers} for name in names]
    plots.comparison(summary, SCENARIO, tmp_path / "comparison.png")
    drawn[0].canvas.draw()
    labels = drawn[0].axes[1].get_yticklabels()
    assert [label.get_text() for label in labels][:3] == names[:3]
    boxes = [label.get_window_extent() for label in labels]
    assert all(above.y0 > below.y1 for above, below in pairwise(boxes))
