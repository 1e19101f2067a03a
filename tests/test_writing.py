"""Files that are whole or not there."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from llmscale_env._writing import replace_files, write_text
from llmscale_env.calibrate.client_report import draw
from llmscale_env.calibrate.observed import Observed
from llmscale_env.calibrate.replay import Replayed
from llmscale_env.workload.stats import plot_stats


def test_of_several_files_all_are_replaced_or_none(tmp_path: Path):
    def full(part: Path) -> None:
        part.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device", str(part))

    kept = write_text(tmp_path / "a.csv", "old")
    with pytest.raises(OSError, match=r"No space left on device: .*/b\.csv'") as error:
        replace_files({kept: lambda part: part.write_text("new"), tmp_path / "b.csv": full})
    assert error.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert kept.read_text() == "old"


def draw_a_trace(path: Path) -> None:
    plot_stats(path, "a trace", None, np.arange(1, 9), np.arange(1, 9))


def draw_a_run(path: Path) -> None:
    ones, whole, all_of_them = np.ones(2), np.ones(2, np.int64), np.ones(2, bool)
    seen = Observed("a.csv", "CSV", whole, ones, whole, whole, ones, ones, all_of_them)
    draw(seen, Replayed(*(ones,) * 5), {"all": all_of_them}, "a run", path)


@pytest.mark.parametrize("make", [draw_a_trace, draw_a_run])
def test_a_picture_is_whole_or_the_old_one(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(figure: Figure, path: Path, **_: Any) -> None:
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Figure, "savefig", full)
    kept = write_text(tmp_path / "a.png", "old")
    with pytest.raises(OSError, match="No space left on device"):
        make(kept)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    assert kept.read_text() == "old"
