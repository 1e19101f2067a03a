"""Model files that others wrote: whatever one holds, it is read, or refused in one line, at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from agents.configuration.config import TrainConfig, make_config
from agents.models.algorithms import make_model
from agents.models.store import (
    LAST,
    ModelError,
    cannot_resume,
    contents_of,
    dumps,
    loads,
    model_of,
    read,
    steps_of,
)

CONFIG = make_config("burst-multicast", {"ppo.net": [4]})
SPACES = spaces.Box(-1.0, 1.0, (3,)), spaces.MultiDiscrete([2, 3])


@pytest.fixture
def contents() -> dict[str, Any]:
    return contents_of(make_model(CONFIG, None, SPACES))


def file_of(header: str) -> bytes:
    return len(header.encode()).to_bytes(8, "little") + header.encode()


def said(text: str) -> str:
    """A header whose JSON of this project is `text`."""
    return json.dumps({"__metadata__": {"llmscale-model-1": text}})


@pytest.mark.parametrize(
    "header",
    [
        *("[]", "null", "3", '"text"', "{}"),
        *('{"__metadata__": null}', '{"__metadata__": [1]}', said("[]"), said("null"), said("")),
        '{"__metadata__": {"llmscale-model-1": 3}}',
    ],
)
def test_a_header_of_another_form_is_refused(header: str, tmp_path: Path):
    data = file_of(header)
    path = tmp_path / LAST
    path.write_bytes(data)
    for ask in (read, steps_of):
        with pytest.raises(ModelError, match="cannot be read: damaged"):
            ask(path)
    with pytest.raises(ModelError, match="cannot be read: damaged"):
        loads(data)
    assert "cannot be read: damaged" in cannot_resume(tmp_path)


@pytest.mark.parametrize("steps", ["Infinity", "1e400", "NaN", "-1", "1e30", "true", "null", '"9"'])
def test_steps_that_are_no_number_are_refused(steps: str, contents: dict[str, Any], tmp_path: Path):
    path = tmp_path / LAST
    path.write_bytes(file_of(said(f'{{"timesteps": {steps}}}')))
    with pytest.raises(ModelError, match="cannot be read: damaged"):
        steps_of(path)
    contents["timesteps"] = json.loads(steps)
    with pytest.raises(ModelError, match="timesteps = "):
        model_of(contents, CONFIG)


def test_a_file_is_as_long_as_it_says(contents: dict[str, Any], tmp_path: Path):
    """A sparse file of a terabyte costs nobody anything, and would take all memory."""
    path = tmp_path / LAST
    path.write_bytes(dumps(contents))
    assert read(path)["timesteps"] == 0
    os.truncate(path, 2**40)
    for ask in (read, steps_of):
        with pytest.raises(ModelError, match="cannot be read: damaged"):
            ask(path)


def test_what_memory_has_no_room_for_is_refused(
    contents: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / LAST
    path.write_bytes(dumps(contents))

    def none_left(_: Path) -> bytes:
        raise MemoryError

    monkeypatch.setattr(Path, "read_bytes", none_left)
    with pytest.raises(ModelError, match="larger than memory"):
        read(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / LAST)
    with pytest.raises(ModelError, match="there is no such file"):
        read(tmp_path / LAST)


def recurrent(**hyper: Any) -> TrainConfig:
    changes = {f"recurrent-ppo.{key}": value for key, value in hyper.items()}
    return make_config("burst-multicast", {"agent": "recurrent-ppo", **changes})


def test_no_network_is_made_that_weights_are_missing_for(
    contents: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """Also of an LSTM: one of 65,536 units would take 64 GB."""
    made: list[TrainConfig] = []
    monkeypatch.setattr(
        "agents.models.algorithms.make_model", lambda config, *_: made.append(config)
    )
    for config in (recurrent(lstm_size=65536, net=[]), recurrent(lstm_size=65536, net=[1])):
        with pytest.raises(ModelError, match="fewer weights"):
            model_of(contents, config)
    contents["spaces"]["choices"] = np.array([2**62] * 4)  # whose sum is 0 in 64 bits
    with pytest.raises(ModelError, match="fewer weights"):
        model_of(contents, CONFIG)
    assert made == []


@pytest.mark.parametrize(
    "spoil", [lambda w: w * np.nan, lambda w: w + np.inf, lambda w: np.full(w.shape, 1e300)]
)
def test_weights_that_are_no_numbers_are_refused(
    spoil: Callable[[Any], Any], contents: dict[str, Any]
):
    contents["policy"]["action_net.weight"] = spoil(contents["policy"]["action_net.weight"])
    with pytest.raises(ModelError, match="no finite numbers"):
        model_of(contents, CONFIG)
