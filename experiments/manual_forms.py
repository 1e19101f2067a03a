"""The page of what environments are composed of: observation blocks, action heads, terms of the reward."""

from __future__ import annotations

import inspect
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


def _first(kind: Any) -> str:
    """The first paragraph of a docstring in one line."""
    return " ".join(inspect.cleandoc(kind.__doc__).partition("\n\n")[0].split())


def _text(kind: Any) -> str:
    """All that a docstring says before its sections, in paragraphs."""
    paragraphs = inspect.cleandoc(kind.__doc__).split("\n\n")
    kept = [
        p for p in paragraphs if p.partition("\n")[0] not in ("Raises:", "Attributes:", "Args:")
    ]
    return "\n\n".join(" ".join(p.split()) for p in kept)


def _users(what: str, name: str) -> str:
    """Environments that have a block or head by default."""
    found = []
    for entry in llmscale_env.ENVIRONMENTS:
        module, _, cls = entry.entry_point.partition(":")
        if name in getattr(getattr(import_module(module), cls), what):
            found.append(entry.short_name)
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
    potential = _text(Shaping).partition("\n\n")[2]  # without the heading
    return f"""<!-- Made by `python -m experiments.manual` from docstrings. -->
# Composing an environment

Every environment is a scenario seen through observation blocks and steered through action heads. Its
arguments `observation` and `action` take other ones by name, in any order, for whatever scenario has what
they speak of:

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

`make_codec()` of an environment gives what runs its network as a policy under `run_episode`; a codec with
a reference policy wants `reset(seed)` at the start of an episode.

## Observation blocks

| block | shows | by default in |
|---|---|---|
{blocks}

### Blocks that know no size

Their entries depend on classes and pools and on nothing else: not on slots, `max_gpus` or an expected
rate. One network reads them on clusters of any size. What an instance can serve is reckoned from the
calibrated iteration times (`llmscale_env/envs/service.py`): prompt tokens at the pace of a prefill of 1,024,
output tokens at that of the largest batch of contexts of 1,024 that fits the KV cache, the pool's `max_batch`
and the class's ITL target.

| block | entry | min | max | meaning |
|---|---|---|---|---|
{_entries()}

## Action heads

| head | decides | by default in |
|---|---|---|
{heads}

A mask says of every choice whether it is possible now if the other pools keep what they have.

### `{ScaledChanges.name}`

{_text(ScaledChanges)}

Choices: {factors}.

### `{Residual.name}`

{_text(Residual)}

Choices: {residuals}. Every episode of the vectorised form has its own copy of the policy, which is reset
with the episode's seed, is shown a `ClusterView` once per decision, and is saved, restored and forked
with the episode. Other heads' orders go before the policy's.

## Late backlog

{potential} `reward_parts` shows the term as `late_backlog`; `metrics` has the reward without it. Who
will be late is estimated from the slack of shared queues, the age of the oldest at instances and the pace
of active instances and of those on their way, as far as classes of higher priority leave them free.

## Late metrics, wrong calibration

A scenario's `metric_delay_s` shows every policy, and every environment's agent, the cluster as it was so
many control intervals ago (its own last action is as it is); orders count at once. Forecasts are made
from what was known then, and look as much further ahead. `time_factor` and `load_time_factor` of a pool
make iterations and loads take so many times as long as the calibration says by which policies, blocks and
forecasts reckon: `fleet.pools.*.time_factor=1.2`.
"""
