"""Pictures of a training run for the docs: its learning curve, and an episode of its best model.

python -m agents.pictures run=FOLDER [out=docs/images] [seed=10000]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from agents.configuration.config import EVALUATION_SEED, read_config
from llmscale_env._cli import Slip, check_folder, parse_options, run_command, whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    return run_command("pictures", __doc__, argv, _draw)


def _draw(words: Sequence[str]) -> int:
    options = parse_options(words, ("run", "out", "seed"))
    if "run" not in options:
        raise Slip("run= is missing: the folder of a training run")
    folder, out = Path(options["run"]), Path(options.get("out", "docs/images"))
    seed = whole(options, "seed", EVALUATION_SEED, 0, 2**31 - 1)
    for path in draw(folder, out, seed):
        print(path)
    return 0


def draw(folder: Path, out: Path, seed: int) -> list[Path]:
    """Draw learning_curve.png and episode.png of the run in `folder` to `out`.

    Raises:
        Slip: `folder` is no run folder, or its model cannot be read.
    """
    config = read_config(folder)
    if not (folder / "validation.csv").is_file():
        raise Slip(f"run = {str(folder)!r}: has no validation.csv; nothing was trained there")
    from agents.configuration.environments import evaluation_scenario, make_scenario
    from agents.evaluate import draw_episode
    from agents.learned import LearnedPolicy
    from agents.models.store import ModelError
    from agents.runs.plots import learning_curve

    scenario = make_scenario(config)
    check_folder("out", out)
    try:
        policy = LearnedPolicy(folder, name=config.agent)
    except ModelError as error:
        raise Slip(str(error)) from None
    return [
        learning_curve(folder, out / "learning_curve.png", scenario),
        draw_episode(policy, evaluation_scenario(config, scenario), seed, out),
    ]


if __name__ == "__main__":
    sys.exit(main())
