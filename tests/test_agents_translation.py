"""Commands of policies as actions: the nearest possible choice of each part."""

from __future__ import annotations

from typing import Any

import pytest

from agents.configuration.environments import codec_of, make_codec, make_scenario
from agents.learning.translation import TranslationError, Translator, share_exact
from llmscale_env.control.command import Command
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import load_scenario
from tests.small_runs import copying


class Script:
    """Orders given one after the other, then none; what `translate` makes of each is kept."""

    name = "script"

    def __init__(self, commands: list[Command], translator: Translator) -> None:
        self.commands, self.translator = commands, translator
        self.found: list[Any] = []

    def reset(self, scenario: Any, seed: int) -> None:
        self.translator.reset()
        self.step = 0

    def act(self, view: Any) -> Command:
        command = self.commands[self.step] if self.step < len(self.commands) else Command()
        self.step += 1
        self.found.append(self.translator.translate(command, view))
        return command


def translated(commands: list[Command], *words: str) -> tuple[list[dict[str, str]], list[Any]]:
    """Per command the choices by part, and the translations."""
    config = copying(*words)
    scenario = make_scenario(config)
    codec = codec_of(config, scenario)
    script = Script(commands, Translator(codec, scenario))
    run_episode(script, scenario, 1)
    decoder = codec.decoder
    named = [
        {
            part: options[choice]
            for part, options, choice in zip(
                decoder.parts, decoder.choices, found.action, strict=True
            )
        }
        for found in script.found
    ]
    return named, script.found


def test_commands_become_absolute_counts():
    named, found = translated(
        [
            Command(),
            Command(
                targets={"interactive": 3},
                batch_limits={"mixed": 128, "interactive": 100},
                overflow_share={"interactive": 0.4},
                load_source="host",
            ),
            Command(),
            Command(load_source={"mixed": "host"}),
        ],
    )
    assert named[0] == {
        "interactive/instances": "2",
        "mixed/instances": "1",
        "batch/instances": "0",
        "interactive/batch_limit": "64",
        "mixed/batch_limit": "64",
        "batch/batch_limit": "256",
        "interactive/overflow_share": "0",
        "load_source": "ssd",
    }
    assert found[0].exact.all()
    assert named[1]["interactive/instances"] == "3"
    assert named[1]["mixed/instances"] == "1"
    assert named[1]["mixed/batch_limit"] == "128"
    assert named[1]["interactive/batch_limit"] == "128"  # 100 is nearer to 128 than to 64 in logs
    assert named[1]["interactive/overflow_share"] == "0.5"
    assert named[1]["load_source"] == "host"
    wrong = [p for p, exact in zip(named[1], found[1].exact, strict=True) if not exact]
    assert wrong == ["interactive/batch_limit", "interactive/overflow_share"]
    # What was ordered before still holds, sources apart: those are of one command.
    assert named[2] == {**named[1], "load_source": "ssd"}
    # One of three pools: the others' source is right for more of them.
    assert named[3]["load_source"] == "ssd"
    assert not found[3].exact[-1]
    assert [f.left_out for f in found[:4]] == [()] * 4
    choices, commands = share_exact(found[:4])
    assert choices == pytest.approx(1 - (0 + 2 + 2 + 3) / 32)
    assert commands == 0.25


def test_commands_become_changes():
    named, found = translated(
        [
            Command(drain=(0,)),
            Command(targets={"interactive": 0, "mixed": 4}),
            Command(targets={"batch": 2}, evict={1: 1}, controllers={"mixed": "chiron"}),
            Command(batch_limits={"mixed": 32}),
        ],
        "action=instances",
    )
    assert list(named[0].values()) == ["-1", "0", "0"]
    assert found[0].exact.all()
    # +3 is no choice: of +2 and +4, as near, the larger, since four GPUs are free.
    assert list(named[1].values()) == ["-1", "+4", "0"]
    assert found[1].exact.tolist() == [True, False, True]
    assert named[2]["batch/instances"] == "+2"
    assert found[2].left_out == ("evict", "controllers")
    assert found[3].left_out == ("batch_limits",)


def test_of_two_that_are_equally_near_the_one_that_moves_is_taken():
    words = ["action=instance_counts", "scenario.fleet.max_gpus=12"]
    words += ["scenario.fleet.pools.interactive.initial_instances=6"]
    named, _ = translated([Command(targets={"interactive": 7})], *words)
    assert named[0]["interactive/instances"] == "8"
    words[-1] = "scenario.fleet.pools.interactive.initial_instances=8"
    named, found = translated([Command(targets={"interactive": 7})], *words)
    assert named[0]["interactive/instances"] == "6"
    assert not found[0].exact[0]


def test_what_is_impossible_is_not_chosen():
    named, found = translated([Command(targets={"interactive": 12})], "action=instance_counts")
    # Six GPUs, one of them held by the mixed pool.
    assert named[0]["interactive/instances"] == "5"
    assert found[0].exact.tolist() == [False, True, True]


def test_an_action_space_of_other_things_is_refused():
    scenario = load_scenario("multi-model-queue")
    with pytest.raises(TranslationError, match="none is an instance count"):
        Translator(make_codec("multi-model-queue", scenario), scenario)
