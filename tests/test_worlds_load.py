"""`python -m experiments.worlds_load`: what it refuses before it simulates."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import worlds_load


def test_a_picture_that_cannot_be_written_is_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worlds_load, "picture", lambda *_: pytest.fail("days begin"))
    assert worlds_load.main(["show=picture", f"out={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"worlds_load: out = {str(tmp_path)!r}: is a folder")
