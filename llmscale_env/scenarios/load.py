"""Scenarios from YAML, with overrides by dotted path and errors that name the field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from llmscale_env._reading import Unreadable, read_yaml
from llmscale_env.scenarios.machines import put_on, with_links
from llmscale_env.scenarios.replicate import in_every_region
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.families import family_names, members
from llmscale_env.workload.mixes import mix_data, replayed

_HERE = Path(__file__).parent


class ScenarioError(ValueError):
    """A scenario that does not exist or is not valid; the message says which field and why."""


def scenario_names() -> tuple[str, ...]:
    """Names of the shipped scenarios."""
    return tuple(sorted(path.stem for path in _HERE.glob("*.yaml")))


def load_scenario(name: str | Path | Scenario, /, **overrides: Any) -> Scenario:
    """A shipped scenario by name, or one from a YAML file, with overrides.

    Args:
        name: one of `scenario_names()`, or a path ending in .yaml or .yml. A `Scenario` is taken as
            the starting point itself. A file with `like: NAME` has the fields of that shipped scenario
            but for those that it names itself, by dotted path where it is a part of one.
        overrides: dotted paths of fields with their values; a part is changed after the whole, whichever
            is named first. Since a keyword has no dots, pass
            them as `**{"fleet.max_gpus": 12, "fleet.pools.mixed.batch_limit": 64}`; members of lists are
            named by their `name` or their number, and "*" is all of them. `workload="chat"` names a
            shipped mix. Other `workload.streams` take the place of its queues and jobs as well, unless those
            are given too or there are no streams. `**{"workload.replay": "traces"}` puts the real traces of
            that folder in the place of what imitates them. `network="blitzscale-a"` puts that machine's links
            in the place of the scenario's and keeps `startup_s` and `communicator_s`;
            `machine="p4de.24xlarge"` takes machines, GPUs per machine and GPU cards from it as well
            (`scenarios.machines`).

    Raises:
        ScenarioError: unknown name, unreadable file, unknown field or value out of range.
    """
    if isinstance(name, Scenario):
        return with_overrides(name, overrides)
    data, changes = _read(str(name))
    return _build(data, {**changes, **overrides})


def held_out(scenario: Scenario) -> str:
    """The test workload of the family on whose training workload a scenario is; "": on none."""
    for family in family_names():
        for member in members(family, "train"):
            with suppress(ScenarioError):  # a cluster that cannot have this load
                if load_scenario(scenario, workload=member.name).workload == scenario.workload:
                    return member.name.replace("/train", "/test")
    return ""


def _read(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A scenario's file, or the one that it is like, and what it changes of that."""
    if text.endswith((".yaml", ".yml")):
        path = Path(text)
        if not path.is_file():
            raise ScenarioError(f"scenario = {text!r}: there is no such file")
    else:
        if text not in scenario_names():
            near = difflib.get_close_matches(text, scenario_names(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ScenarioError(
                f"scenario = {text!r}: unknown; there are {list(scenario_names())}{hint}"
            )
        path = _HERE / f"{text}.yaml"
    try:
        data = read_yaml(path)
    except Unreadable as error:
        raise ScenarioError(f"{path.name}: {error}") from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ScenarioError(f"{path.name}: must hold a mapping of fields")
    if "like" not in data:
        return data, {}
    original = str(data.pop("like"))
    others = [name for name in scenario_names() if name != path.stem]
    if original not in others:
        raise ScenarioError(
            f"{path.name}: like = {original!r}: must be another shipped scenario, one of {others}"
        )
    base, changes = _read(original)
    return base, {**changes, **data}


def with_overrides(scenario: Scenario, overrides: Mapping[str, Any]) -> Scenario:
    """The same scenario with some fields changed (see `load_scenario`)."""
    if not overrides:
        return scenario
    return _build(_plain(scenario.model_dump()), overrides)


def validate_scenario(data: Mapping[str, Any]) -> Scenario:
    """A scenario from plain data.

    Raises:
        ScenarioError: naming the field, its value and what is allowed.
    """
    return _build(dict(data), {})


def _build(data: dict[str, Any], overrides: Mapping[str, Any]) -> Scenario:
    try:
        # Made anew, since parts of a file and copies of a pool may share theirs.
        data = _plain(in_every_region(data))
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    for path, value in sorted(overrides.items(), key=_depth):
        if path == "machine":
            try:
                put_on(data, str(value))
            except ValueError as error:
                raise ScenarioError(str(error)) from None
            continue
        _put(data, path, value)
    if isinstance(data.get("workload"), str):
        try:
            data["workload"] = mix_data(data["workload"])
        except ValueError as error:
            raise ScenarioError(f"workload: {error}") from None
    elif isinstance(data.get("workload"), dict) and "mix" in data["workload"]:
        changes = dict(data["workload"])
        try:
            mix = mix_data(changes.pop("mix"))
            data["workload"] = {**_for_streams(mix, changes.get("streams")), **changes}
        except ValueError as error:
            raise ScenarioError(f"workload.mix: {error}") from None
    folder = None
    if isinstance(data.get("workload"), dict) and "replay" in data["workload"]:
        data["workload"] = dict(data["workload"])
        folder = data["workload"].pop("replay")
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        raise ScenarioError(_explain(error, data)) from None
    if folder is None:
        return scenario
    try:
        workload = replayed(scenario.workload, str(folder))
    except (ValueError, OSError) as error:
        raise ScenarioError(f"workload.replay: {error}") from None
    return scenario.model_copy(update={"workload": workload})


def _depth(override: tuple[str, Any]) -> tuple[int, bool]:
    """Parts are changed after the whole, and a workload's queues after its streams, in whatever order."""
    return override[0].count("."), override[0] != "workload.streams"


def _for_streams(workload: dict[str, Any], streams: Any) -> dict[str, Any]:
    """A workload for other streams: without its queues and jobs, unless there are no streams."""
    gone = ("batch_queues", "jobs") if streams else ()
    return {key: value for key, value in workload.items() if key not in gone}


def _plain(value: Any) -> Any:
    """Tuples as lists, so that overrides can change members."""
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    return value


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    parts = path.split(".")
    if parts == [""]:
        raise ScenarioError("override without a name: write field=value")
    here: Any = data
    for depth, part in enumerate(parts[:-1]):
        where = ".".join(parts[: depth + 1])
        if part == "*" and isinstance(here, list):
            rest = parts[depth + 1 :]
            for member in range(len(here)):
                _put(data, ".".join([*parts[:depth], str(member), *rest]), value)
            return
        if isinstance(here, dict):
            if isinstance(here.get(part), str) and part == "workload":
                here[part] = _plain(mix_data(here[part]))  # which is kept, and shared
            elif isinstance(here.get(part), str) and part == "network":
                here[part] = {"machine": here[part]}
            elif here.get(part) is None:
                here[part] = {}
            here = here[part]
        else:
            here = here[_member(here, part, where)]
        if not isinstance(here, (dict, list)):
            raise ScenarioError(f"{path}: {where} is a single value ({here!r})")
    last = parts[-1]
    if path in ("network", "network.machine") and isinstance(value, str):
        try:
            data["network"] = with_links(data.get("network"), value)
        except ValueError as error:
            raise ScenarioError(f"network: {error}") from None
        return
    if path == "workload.streams":
        data["workload"] = here = _for_streams(here, value)
    if isinstance(here, list):
        here[_member(here, last, path)] = value
    else:
        here[last] = value


def _member(members: list[Any], part: str, where: str) -> int:
    """Place of a list member by `name` or number."""
    names = [m.get("name") if isinstance(m, dict) else None for m in members]
    if part in names:
        return names.index(part)
    if part.isdigit() and int(part) < len(members):
        return int(part)
    known = [n for n in names if n] or list(range(len(members)))
    raise ScenarioError(f"{where}: no member {part!r}; there are {known}")


def _explain(error: ValidationError, data: Mapping[str, Any]) -> str:
    """The first error in one line: field, what is wrong, value."""
    first = error.errors(include_url=False)[0]
    steps: list[str] = []
    here: Any = data
    for part in first["loc"]:
        if isinstance(part, int) and isinstance(here, (list, tuple)) and part < len(here):
            here = here[part]
            name = here.get("name") if isinstance(here, dict) else None
            steps.append(str(name or part))
        elif isinstance(here, dict) and part in here:
            here = here[part]
            steps.append(str(part))
        elif first["type"] in ("missing", "extra_forbidden"):
            steps.append(str(part))
    where = ".".join(steps)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        return f"{where}: there is no such field"
    if first["type"] == "missing":
        return f"{where}: is missing"
    if isinstance(first["input"], dict) or not where:
        return f"{where}: {message}" if where else message
    return f"{where} = {first['input']!r}: {message}"
