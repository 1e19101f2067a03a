"""Files that are whole or not there."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from llmscale_env._writing import replace_files, write_text


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
