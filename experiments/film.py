"""A moving picture of a policy at work: arrivals, queues, instances and what was on time, as a GIF.

    python -m experiments.film env=mixed-slo-hours policy=paced-tuned [KEY=VALUE ...]

    env=NAME           environment, by its short name
    policy=NAME        of the registry, with settings (hpa:kv_target=0.6); default: the best one known
    seed=10000         of the episode
    frames=40          of the picture, evenly over the episode
    width=600          pixels; the height follows
    out=FILE.gif       default: docs/images/film_ENV.gif
    scenario.FIELD=... as for agents.evaluate, such as scenario.workload=mixed-slo/test-hours

Examples:
    python -m experiments.film env=mixed-slo-hours
    python -m experiments.film env=multi-model-queue policy=qlm-tuned out=qlm.gif
    python -m experiments.film env=burst-multicast policy=blitzscale frames=80 width=800
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from baselines import PolicyError, make_policy
from llmscale_env._cli import (
    Slip,
    check_folder,
    needs,
    parse_scenario_words,
    run_command,
    scenario_of,
    whole,
)
from llmscale_env._writing import replace_file
from llmscale_env.control.command import Command
from llmscale_env.control.policy import Policy
from llmscale_env.control.run import run_episode
from llmscale_env.control.view import ClusterView
from llmscale_env.envs import ENVIRONMENTS
from llmscale_env.envs.render import FrameDrawer, History
from llmscale_env.scenarios import Scenario, ScenarioError, load_scenario

BEST = {
    "mixed-slo-hours": "paced-tuned",
    "multi-model-queue": "twin-queues",
    "placement": "aladdin",
    "placement-per-request": "aladdin-tuned",
    "burst-multicast": "blitzscale-tuned",
    "multi-region": "reactive-tuned",
}
"""The best policy of each environment (docs/leaderboard.md, docs/policies.md)."""

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
COLOURS = 64
FRAME_MS, LAST_MS = 120, 2500


class Watched:
    """A policy, and what there was to see at each of its decisions."""

    def __init__(self, policy: Policy) -> None:
        self.name, self._policy = policy.name, policy

    def reset(self, scenario: Scenario, seed: int) -> None:
        """A new episode."""
        self._policy.reset(scenario, seed)
        self.history = History()

    def act(self, view: ClusterView) -> Command:
        """The policy's."""
        if view.window.length_s > 0:
            self._note(view)
        return self._policy.act(view)

    def _note(self, view: ClusterView) -> None:
        row = {"time_s": view.time_s}
        totals, window = view.totals, view.window
        late = totals["rejected"] + totals["ttft_late"] + totals["itl_late"]
        for c, slo_class in enumerate(view.scenario.classes):
            known = int(totals["on_time"][c] + late[c])
            row[f"{slo_class.name}/slo_attainment"] = totals["on_time"][c] / known if known else 1.0
            row[f"{slo_class.name}/rate"] = float(window.arrived[c]) / window.length_s
        for q, queue in enumerate(view.scenario.fleet.queues):
            row[f"queue/{queue.name}"] = float(view.queues["requests"][q])
        row["queue/groups"] = float(view.groups["requests"].sum())
        for p, pool in enumerate(view.scenario.fleet.pools):
            row[f"{pool.name}/active"] = float(view.pools["active"][p])
            row[f"{pool.name}/waiting"] = float(view.pools["waiting"][p])
        for name, value in row.items():
            self.history.rows.setdefault(name, []).append(float(value))


def frames_of(
    scenario: Scenario, policy: Policy, seed: int, frames: int
) -> list[NDArray[np.uint8]]:
    """Pictures of an episode, evenly over its decisions, the last one at its end.

    Args:
        scenario: what is simulated.
        policy: who runs it.
        seed: of the episode.
        frames: at most so many; fewer of an episode with fewer decisions.

    Raises:
        PolicyError: the policy cannot run the scenario.
    """
    watched = Watched(policy)
    run_episode(watched, scenario, seed)
    rows = watched.history.rows
    n = len(rows["time_s"])
    drawer = FrameDrawer(scenario, gateway=False)
    ends = np.unique(np.linspace(n / min(frames, n), n, min(frames, n)).astype(int))
    return [drawer.draw(History({k: v[:end] for k, v in rows.items()})) for end in ends]


def gif_of(frames: Sequence[NDArray[np.uint8]], width: int) -> bytes:
    """The frames as a GIF that goes round, with one palette."""
    from PIL import Image

    height = round(frames[0].shape[0] * width / frames[0].shape[1])
    pictures = [
        Image.fromarray(f).resize((width, height), Image.Resampling.LANCZOS) for f in frames
    ]
    # This method keeps colours of few pixels, such as those of legends.
    palette = pictures[-1].quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    indexed = [p.quantize(palette=palette, dither=Image.Dither.NONE) for p in pictures]
    written = io.BytesIO()
    indexed[0].save(
        written,
        "GIF",
        save_all=True,
        append_images=indexed[1:],
        duration=[FRAME_MS] * (len(indexed) - 1) + [LAST_MS],
        loop=0,
        optimize=True,
    )
    return written.getvalue()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip."""
    return run_command("film", __doc__, argv, _film, slips=(ScenarioError, PolicyError))


def _film(words: list[str]) -> int:
    keys = ("env", "policy", "seed", "frames", "width", "out")
    options, name, overrides = parse_scenario_words(words, keys)
    if "env" not in options:
        raise Slip("env= is missing, such as env=mixed-slo-hours")
    env = scenario_of(options["env"], [entry.short_name for entry in ENVIRONMENTS])
    if "policy" not in options and env not in BEST:
        raise Slip(f"policy= is missing; only {sorted(BEST)} have one of their own")
    frames = whole(options, "frames", 40, 2, 10_000)
    width = whole(options, "width", 600, 100, 4000)
    seed = whole(options, "seed", 10_000, 0, 2**31)
    needs("matplotlib", "PIL")
    out = Path(options.get("out", IMAGES / f"film_{env}.gif"))
    check_folder("out", out.parent)
    scenario = load_scenario(name or env, **overrides)
    policy = make_policy(options.get("policy", BEST.get(env, "")))
    drawn = frames_of(scenario, policy, seed, frames)
    picture = gif_of(drawn, width)
    replace_file(out, lambda part: part.write_bytes(picture))
    print(f"{out}: {len(drawn)} frames, {out.stat().st_size / 1000:.0f} kB, {policy.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
