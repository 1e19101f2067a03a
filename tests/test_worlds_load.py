"""`python -m experiments.worlds_load`: what it refuses before it simulates."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.mark.parametrize(
    "words, message",
    [
        (["show=peak", "out=a.png"], "out = 'a.png': does nothing with show=peak"),
        (["show=prices", "out=a.png"], "out = 'a.png': does nothing with show=prices"),
        (["fleets=8", "policies=hpa"], "policies = 'hpa': does nothing with show=peak"),
        (["show=picture", "fleets=8"], "fleets = '8': does nothing with show=picture"),
        (["show=picture", "days=1,2"], "days = '1,2': must be one day with show=picture"),
        (["show=picture", "policies=hpaa"], "policy = 'hpaa' is unknown"),
        (["days=²"], "days = '²': must be integers in 1..14"),
    ],
)
def test_what_would_do_nothing_is_refused(
    words: list[str], message: str, refused: Callable[..., str]
):
    assert refused(worlds_load.main, words).startswith(f"worlds_load: {message}")
