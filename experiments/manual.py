"""The environments' pages, made from their docstrings, each with a frame of an episode; their parts.

python -m experiments.manual [out=docs] [pictures=true] [check=false]

Writes `environments/NAME.md` and `images/environment_NAME.png` to `out`, and `forms.md`, the page of blocks
and heads. `pictures=false` leaves the pictures as they are, which takes seconds in place of minutes.
`check=true` writes nothing. It ends with exit code 1 if a page is missing or is not what the docstrings say.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import llmscale_env
from agents.configuration.config import environment_names
from agents.pretrained import shipped
from experiments.film import BEST
from experiments.manual_forms import forms
from experiments.manual_tables import choices, entries
from llmscale_env import EnvironmentEntry
from llmscale_env._cli import check_folder, flag, parse_options, run_command
from llmscale_env._writing import replace_file, write_text
from llmscale_env.control.reward import expected_arrivals
from llmscale_env.envs.base import ServingEnv
from llmscale_env.scenarios import Scenario, held_out, load_scenario

PICTURE_SEED = 0
"""Of the requests and of the orders in the picture."""

MANY_REQUESTS = 1_000_000
"""An episode that brings so many is drawn for two hours only: the day takes minutes."""

SHARING = llmscale_env.ENVIRONMENTS[0]
"""Its page has what all environments share in full; those of the others have a link to it."""

ARGUMENTS = """\
| `observation`, `action` | names of blocks and heads in place of the default ones (docs/forms.md) |
| `forecaster="ewma"` | makes the forecasts that are seen (`llmscale_env.control.forecast`) |
| `reference` | a policy whose instance counts the head `residual` multiplies |
| `shaping` | weight of a term of the reward for late requests (docs/forms.md#late-backlog) |
| `engine="fast"` | or `"reference"`: the simulator in readable Python (docs/architecture.md) |
| `render_mode` | `"ansi"` (the cluster as a table) or `"rgb_array"` (curves of the episode) |
| `num_envs`, `threads` | episodes and threads of the vectorised form (docs/gymnasium.md) |

Episode `e` of the vectorised form equals a single environment reset with `seed + e`. Both engines
give the same numbers."""
"""The arguments that all environments have, as a page lists them below its own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 1 a page is out of date, 2 a slip (named in one line)."""
    return run_command("manual", __doc__, argv, _make, wordless=True)


def _make(words: list[str]) -> int:
    options = parse_options(words, ("out", "pictures", "check"))
    out = Path(options.get("out", "docs"))
    pictures = flag(options, "pictures", True)
    if flag(options, "check"):
        stale = outdated(out)
        for path in stale:
            print(f"{path}: not what the docstring says", file=sys.stderr)
        return 1 if stale else 0
    check_folder("out", out)
    for entry in llmscale_env.ENVIRONMENTS:
        for path in write(entry, out, pictures):
            print(path)
    print(write_text(forms_path(out), forms()))
    return 0


def page_path(entry: EnvironmentEntry, out: Path) -> Path:
    """Where the page of an environment lies below the folder of the docs."""
    return out / "environments" / f"{entry.short_name}.md"


def picture_path(entry: EnvironmentEntry, out: Path) -> Path:
    """Where its picture lies."""
    return out / "images" / f"environment_{entry.short_name}.png"


def outdated(out: Path) -> list[Path]:
    """Pages below `out` that are missing or differ from what would be written."""
    found = []
    for entry in llmscale_env.ENVIRONMENTS:
        path = page_path(entry, out)
        if not path.is_file() or path.read_text(encoding="utf-8") != page(entry):
            found.append(path)
    path = forms_path(out)
    if not path.is_file() or path.read_text(encoding="utf-8") != forms():
        found.append(path)
    return found


def forms_path(out: Path) -> Path:
    """Where the page of blocks and heads lies."""
    return out / "forms.md"


def _trained(entry: EnvironmentEntry) -> str:
    """What the page says of the policies that ship for an environment."""
    env = entry.short_name
    there = shipped(env)
    if not there:
        can = env in environment_names()
        return f"none ship; `python -m agents.train env={env}` trains one" if can else "none ship"
    held = held_out(load_scenario(env))
    days = f" scenario.workload={held}" if held else ""
    command = f"python -m agents.evaluate env={env}{days} policies=pretrained"
    old = sorted(
        {str(each.card["id"]).rpartition("-")[2] for each in there if each.card["id"] != entry.id}
    )
    of = f", trained on {' and '.join(old)}" if old else ""
    return f"{len(there)} ship{of}: `{command}`"


def page(entry: EnvironmentEntry) -> str:
    """The page of an environment, as Markdown."""
    module, _, name = entry.entry_point.partition(":")
    env_class = getattr(import_module(module), name)
    env = env_class()
    first, _, rest = inspect.cleandoc(env_class.__doc__).partition("\n")
    brief, heading, sections = _linked(_shared(completed(rest, env), entry)).partition("\n## ")
    picture = picture_path(entry, Path(".."))
    low, high = env.observation_space.low.min(), env.observation_space.high.max()
    nvec = [int(n) for n in env.action_space.nvec]
    interval, n = env.scenario.control_interval_s, env.scenario.n_steps
    step = f"{interval:g} s, {n} steps per episode"
    if env.scenario.decisions == "arrivals":
        step = f"until the next decision, at most {interval:g} s; episodes of {env.scenario.horizon_s:g} s"
    drawn = "an episode" if not _shortened(env.scenario) else "an episode of two hours"
    return f"""<!-- Made by `python -m experiments.manual` from {module}.{name}. -->
# {entry.id}

{first}

![Random actions]({picture.as_posix()})

The end of {drawn} under random possible actions.
{_film(entry)}{brief.rstrip()}

| | |
|---|---|
| id, short name | `{entry.id}`, `env={entry.short_name}` |
| actions | `MultiDiscrete({nvec})` |
| observations | `Box{env.observation_space.shape}`, float32, in {low:g}..{high:g} |
| one step | {step} |
| one episode at a time | `gymnasium.make("llmscale_env:{entry.id}")` |
| many in one call | `gymnasium.make_vec("llmscale_env:{entry.id}", num_envs=64)` |
| trained policies | {_trained(entry)} |
| source | `{module.replace(".", "/")}.py` |
{heading}{sections.rstrip()}
"""


def _film(entry: EnvironmentEntry) -> str:
    """The best policy at work, where there is a film of it."""
    if entry.short_name not in BEST:
        return ""
    name = entry.short_name
    return (
        f"\n![The best handwritten policy](../images/film_{name}.gif)\n\n"
        f"`{BEST[name]}`, the best handwritten policy: `python -m experiments.film env={name}`.\n"
    )


def _shared(text: str, entry: EnvironmentEntry) -> str:
    """A docstring with what all environments share: in full on one page, as a link on the others."""
    information = inspect.cleandoc(ServingEnv.__doc__ or "").partition("## Information\n\n")[2]
    full = (f"\n{ARGUMENTS}", f"\n\n{information}")
    link = (
        f"\n\n[All others]({SHARING.short_name}.md#arguments) are those of all environments.",
        f"\n\n[Everything else]({SHARING.short_name}.md#information) is as in all environments.",
    )
    said = (
        "\n\nAll others are those of `ServingEnv`.",
        "\n\nEverything else is as `ServingEnv` has it.",
    )
    for sentence, meant in zip(said, full if entry == SHARING else link, strict=True):
        text = text.replace(sentence, meant)
    return text


def _linked(text: str) -> str:
    """Pages of the docs as links; a docstring names them as seen from the root of the repository."""
    return re.sub(r"\bdocs/([\w-]+\.md)(#[\w-]+)?", r"[\1](../\1\2)", text)


def completed(text: str, env: ServingEnv) -> str:
    """A docstring with the tables of its sections, which are declared elsewhere.

    The parts of the action follow the first paragraph of "## Action Space", the entries of the observation
    end "## Observation Space". A form of another environment has no such sections, and gets none.
    """
    sections = re.split(r"\n(?=## )", text)
    for k, section in enumerate(sections):
        if section.startswith("## Action Space\n"):
            heading, first, *others = section.split("\n\n")
            sections[k] = "\n\n".join([heading, first, choices(env, section), *others])
        elif section.startswith("## Observation Space\n"):
            table = entries(env, "\n".join(sections[:k]))
            sections[k] = f"{section.rstrip()}\n\n{table}\n"
    return "\n".join(sections)


def _shortened(scenario: Scenario) -> dict[str, float]:
    """What makes an episode short enough to draw; nothing for most."""
    return {"horizon_s": 7200} if sum(expected_arrivals(scenario)) >= MANY_REQUESTS else {}


def frame(entry: EnvironmentEntry) -> NDArray[np.uint8]:
    """(H, W, 3) the picture at the end of an episode under random possible orders."""
    module, _, name = entry.entry_point.partition(":")
    env_class = getattr(import_module(module), name)
    env = env_class(render_mode="rgb_array", overrides=_shortened(env_class().scenario))
    rng = np.random.default_rng(PICTURE_SEED)
    env.reset(seed=PICTURE_SEED)
    truncated = False
    while not truncated:
        masks = np.split(env.action_masks(), np.cumsum(env.action_space.nvec)[:-1])
        action = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
        *_, truncated, _ = env.step(action)
    picture = env.render()
    env.close()
    return picture


def write(entry: EnvironmentEntry, out: Path, pictures: bool = True) -> list[Path]:
    """Write page and picture of one environment; returns where they are."""
    written = [write_text(page_path(entry, out), page(entry))]
    if pictures:
        from matplotlib.image import imsave

        picture = frame(entry)
        place = picture_path(entry, out)
        written.append(replace_file(place, lambda path: imsave(path, picture)))
    return written


if __name__ == "__main__":
    sys.exit(main())
