"""`llmscale WORD ...`: one command for everything that the package answers.

The module behind a word is imported when the word is given, and no other: an error of the command line is
answered at once, and an install without extras runs all that needs none. `main` of that module gets the words
that follow, and its exit code is that of the process.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from llmscale_env import _interrupt
from llmscale_env._cli import Slip, closest, run_command


class Word(NamedTuple):
    """What a word of the command line stands for.

    Attributes:
        module: has `main(words) -> exit code`.
        says: what it does, in a line.
    """

    module: str
    says: str


GROUPS: dict[str, dict[str, Word]] = {
    "Your cluster": {
        "advise": Word(
            "experiments.desk.advise", "rank autoscalers on your trace: GPUs, dollars, what-ifs"
        ),
        "compare": Word("experiments.desk.compare", "set two answers of advise side by side"),
        "deploy": Word("experiments.desk.deploy", "write the files that run a policy on a cluster"),
        "serve": Word(
            "experiments.desk.serve.command", "run a policy in the shadow of a real cluster"
        ),
        "capacity": Word(
            "experiments.capacity", "how many GPUs a load needs, and how sure that is"
        ),
    },
    "What goes in": {
        "traces": Word("llmscale_env.traces", "read, fit and fetch traces; make one of metrics"),
        "cards": Word("llmscale_env.cards", "GPUs and LLMs: what fits where, and how fast it is"),
        "calibrate": Word("llmscale_env.calibrate", "fit iteration times to your measurements"),
    },
    "Policies": {
        "evaluate": Word("agents.evaluate", "compare policies on the same episodes"),
        "tune": Word("baselines.tune", "search the settings of an autoscaler"),
        "train": Word("agents.train", "train a policy by reinforcement learning"),
        "search": Word("agents.tune", "search the hyperparameters of a training"),
        "export": Word("agents.export", "write a trained policy as ONNX"),
        "clairvoyant": Word(
            "baselines.clairvoyant.__main__", "the least GPU time, with the future known"
        ),
    },
    "The project": {
        "run": Word("experiments.run", "repeat figures and tables of the papers"),
        "list": Word("experiments.list", "the experiments that there are"),
        "worlds": Word("experiments.worlds", "every policy at its best in every environment"),
        "bench": Word("experiments.bench", "how fast the simulator is"),
        "warmup": Word("experiments.desk.warmup", "compile everything once, up to five minutes"),
    },
}
"""The words, in the order in which help shows them."""

WORDS: dict[str, Word] = {name: word for group in GROUPS.values() for name, word in group.items()}

EXAMPLES = """\
Examples:
    llmscale advise trace=my.csv slo=ttft:1,itl:0.05 llm=llama-3.1-8b gpu=h100-80gb max_gpus=60
    llmscale evaluate env=mixed-slo-hours policies=chiron,hpa,static
    llmscale cards fits llm=llama-3.1-70b gpu=h100-80gb,a100-80gb"""


def manual() -> str:
    """What `llmscale --help` shows: one screen."""
    width = max(map(len, WORDS)) + 2
    lines = ["Simulate LLM serving clusters, and find what runs yours.", ""]
    lines += [
        "    llmscale WORD [KEY=VALUE ...]        llmscale WORD --help        llmscale --version"
    ]
    for group, words in GROUPS.items():
        lines += ["", group]
        lines += [f"    {name:<{width}}{word.says}" for name, word in words.items()]
    return "\n".join([*lines, "", EXAMPLES])


def main(argv: Sequence[str] | None = None) -> int:
    """Hand the words after the first to the module of that word.

    Returns:
        The module's exit code; 2 for an unknown word, 130 when interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    name = words[0] if words else ""
    if name not in WORDS:
        return run_command("llmscale", manual(), words, _other_word)
    word = WORDS[name]
    with _interrupt.in_one_line(name):
        run: Callable[[list[str]], int] = importlib.import_module(word.module).main
    return run(words[1:])


def _other_word(words: Sequence[str]) -> int:
    """What is no word of ours."""
    if words[0] == "--version":
        from llmscale_env import __version__

        print(f"llmscale {__version__}")
        return 0
    near = closest(words[0].lstrip("-"), WORDS)
    if words[0].startswith("-") or "=" in words[0]:
        near = ""
    raise Slip(f"{words[0]!r}: unknown word{near}; llmscale --help lists them all")
