"""The page of what environments are composed of: observation blocks, action heads, terms of the reward."""

from __future__ import annotations

import inspect
import re
import textwrap
from importlib import import_module
from typing import Any

import llmscale_env
from llmscale_env.envs.action_heads.size_free import Residual, ScaledChanges
from llmscale_env.envs.actions import HEADS
from llmscale_env.envs.observations import BLOCKS
from llmscale_env.envs.shaping import Shaping
from llmscale_env.scenarios import load_scenario

SIZE_FREE = ("class_load", "urgency", "pool_state", "slo_tails", "wishes")
"""Blocks that are the same for clusters of any size, entry by entry on the page."""

FAMILY = "mixed-slo"
"""Environments whose names begin so; where all of them have a part, they share one entry of the page."""


def _first(kind: Any) -> str:
    """The first paragraph of a docstring in one line."""
    return " ".join(inspect.cleandoc(kind.__doc__).partition("\n\n")[0].split())


def _text(kind: Any) -> str:
    """All that a docstring says before its sections, in paragraphs."""
    paragraphs = inspect.cleandoc(kind.__doc__).split("\n\n")
    kept = [
        p for p in paragraphs if p.partition("\n")[0] not in ("Raises:", "Attributes:", "Args:")
    ]
    return "\n\n".join(_filled(p) for p in kept)


def _filled(text: str) -> str:
    """A paragraph in lines of at most 110 characters, none of which breaks in backquotes."""
    whole = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", "\0"), " ".join(text.split()))
    lines = textwrap.fill(whole, 110, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


def _users(what: str, name: str) -> str:
    """Environments that have a block or head by default; all that begin like `FAMILY` by its name."""
    found = []
    for entry in llmscale_env.ENVIRONMENTS:
        module, _, cls = entry.entry_point.partition(":")
        if name in getattr(getattr(import_module(module), cls), what):
            found.append(entry.short_name)
    alike = [e.short_name for e in llmscale_env.ENVIRONMENTS if e.short_name.startswith(FAMILY)]
    if set(alike) <= set(found):
        found = [f"all {FAMILY}", *(each for each in found if each not in alike)]
    return ", ".join(found) or "none"


def _entries() -> str:
    """Entries of the size-free blocks, of one class and one pool."""
    scenario = load_scenario("mixed-slo")
    names = {scenario.classes[0].name: "CLASS", scenario.fleet.pools[0].name: "POOL"}
    rows = []
    for block in SIZE_FREE:
        of = "POOL" if block in ("pool_state", "wishes") else "CLASS"
        for entry in BLOCKS[block](scenario).entries():
            owner, _, rest = entry.name.partition("/")
            if owner in names:
                rows.append((block, f"{of}/{rest}", entry))
            elif owner not in {c.name for c in scenario.classes} | {
                p.name for p in scenario.fleet.pools
            }:
                rows.append((block, entry.name, entry))
    return "\n".join(
        f"| `{block}` | `{name}` | {x.low:g} | {x.high:g} | {x.meaning} |"
        for block, name, x in rows
    )


def forms() -> str:
    """The page, as Markdown."""
    blocks = "\n".join(
        f"| `{name}` | {_first(kind)} | {_users('observation', name)} |"
        for name, kind in BLOCKS.items()
    )
    heads = "\n".join(
        f"| `{name}` | {_first(kind)} | {_users('action', name)} |" for name, kind in HEADS.items()
    )
    scenario = load_scenario("mixed-slo")
    factors, residuals = (", ".join(h(scenario).choices[0]) for h in (ScaledChanges, Residual))
    scaled, residual, potential = (
        _text(kind).partition("\n\n")[2]  # without the heading
        for kind in (ScaledChanges, Residual, Shaping)
    )
    late = _filled("""`reward_parts` has the term as `late_backlog`, `metrics` the reward without it.
        `late_c` is estimated from the slack of shared queues, the ages of the oldest requests at
        instances, and the pace that classes of higher priority leave free.""")
    copies = _filled(f"""Choices: {residuals}. Every episode has its own copy of the policy, reset with
        its seed, and saved, restored and forked with it. Orders of other heads precede the policy's.""")
    return f"""<!-- Made by `python -m experiments.manual` from docstrings. -->
# Composing an environment

An environment is a scenario with observation blocks and action heads. The arguments `observation` and
`action` name others, in any order, if the scenario has what they refer to:

```python
import gymnasium
from baselines import make_policy

env = gymnasium.make(
    "llmscale_env:llmscale/MixedSLO-Hours-v1",
    observation=("class_load", "urgency", "pool_state", "slo_tails", "wishes", "last_action"),
    action=("residual",),
    reference=make_policy("chiron-tuned"),
    shaping={{"weight": 10.0, "gamma": 0.99}},
)
observation, info = env.reset(seed=0)
observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
```

`make_codec()` gives the codec with which a network runs as a policy (`run_episode`). With a reference policy
call its `reset(seed)` at the start of an episode.

## Observation blocks

| block | shows | by default in |
|---|---|---|
{blocks}

### Size-free blocks

They depend on neither slots, `max_gpus` nor expected rates: one network reads clusters of any size.
What an instance can serve comes from calibrated iteration times (`llmscale_env/envs/service.py`):

- prompt tokens: the pace of a prefill of 1,024;
- output tokens: the pace of the largest batch of contexts of 1,024 within the KV cache, `max_batch`
  and the class's ITL target.

| block | entry | min | max | meaning |
|---|---|---|---|---|
{_entries()}

## Action heads

| head | decides | by default in |
|---|---|---|
{heads}

A mask holds while the other pools keep what they have.

### `{ScaledChanges.name}`

{scaled}

Choices: {factors}.

### `{Residual.name}`

{residual}

{copies}

## Late backlog

{potential}

{late}

## Late metrics, wrong calibration

- `metric_delay_s` of a scenario: policies and agents see the cluster so many seconds late (whole
  control intervals), but the agent's last action at once. Orders act at once. Forecasts look that
  much further ahead.
- `time_factor`, `load_time_factor` and `acquire_time_factor` of a pool multiply the times of its
  iterations, of loads, and from an order to the load, as in `fleet.pools.*.time_factor=1.2`.
  Policies, blocks and forecasts keep the calibrated times.
"""
