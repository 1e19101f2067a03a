"""Named workloads (YAML), and real traces in place of what imitates them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from llmscale_env._reading import Unreadable, read_yaml
from llmscale_env.workload.config import WorkloadConfig
from llmscale_env.workload.families import member_data, member_names
from llmscale_env.workload.fetch import SOURCES

_HERE = Path(__file__).parent


def mix_names() -> tuple[str, ...]:
    """Names of the shipped mixes."""
    return tuple(sorted(path.stem for path in _HERE.glob("*.yaml")))


def mix_data(name: str) -> dict[str, Any]:
    """A shipped mix as plain data, for a scenario to change before it is validated.

    Args:
        name: of a mix; FAMILY/MEMBER, a workload of a family; or the path of a YAML file (*.yaml) with the
            same fields.

    Raises:
        ValueError: if there is none of this name, or the file cannot be read.
    """
    if isinstance(name, str) and name.endswith((".yaml", ".yml")):
        try:
            data: Any = read_yaml(Path(name))
        except Unreadable as error:
            raise ValueError(f"{name}: {error}") from None
        if not isinstance(data, dict):
            raise ValueError(f"{name}: must hold streams, batch_queues or jobs")
        return data
    if isinstance(name, str) and "/" in name:
        return member_data(name)
    if name not in mix_names():
        raise ValueError(
            f"mix = {name!r}: unknown; there are {list(mix_names())} "
            f"and, of families, {list(member_names())}"
        )
    return yaml.safe_load((_HERE / f"{name}.yaml").read_text(encoding="utf-8"))


def load_mix(name: str, *, rate_scale: float = 1.0, llm: str | None = None) -> WorkloadConfig:
    """A shipped mix.

    Args:
        name: one of `mix_names()`.
        rate_scale: multiplies its rates and queue sizes.
        llm: serve everything with this LLM, in place of the mix's own.

    Raises:
        ValueError: unknown name, or a `rate_scale` out of range.
    """
    data = mix_data(name)
    if llm is not None:
        for kind in ("streams", "batch_queues", "jobs"):
            for part in data.get(kind, []):
                part["llm"] = llm
    return _validated({**data, "rate_scale": rate_scale})


def replayed(workload: WorkloadConfig, folder: str | Path) -> WorkloadConfig:
    """The same workload, its `counts` streams replayed request by request from trace files.

    The windows stay those that the counts would have had with the same seed; lengths become the
    trace's own. `levels` that stand for a trace are replaced by it: a window from a random start, rescaled by
    repeating requests. In a scenario, `workload.replay: FOLDER` does the same.

    Args:
        workload: what to change.
        folder: where `python -m llmscale_env.traces fetch` put the files (or the same requests as
            `azure_conv_2023.csv.gz` and so on).

    Raises:
        FileNotFoundError: if the file of a table is not there.
    """
    data = workload.model_dump()
    for stream in data["streams"]:
        arrivals = stream["arrivals"]
        table = arrivals.get("table" if arrivals["kind"] == "counts" else "stands_for")
        if table is None:
            continue
        own = [SOURCES[table].file_name] if table in SOURCES else []
        candidates = [Path(folder) / n for n in (*own, f"{table.replace('-', '_')}.csv.gz")]
        found = [path for path in candidates if path.is_file()]
        if not found:
            raise FileNotFoundError(
                f"stream {stream['name']!r}: none of {[p.name for p in candidates]} is in "
                f"{folder}; python -m llmscale_env.traces fetch {table} to={folder}"
            )
        if arrivals["kind"] == "counts":
            arrivals["trace_path"] = str(found[0])
        else:
            stream["arrivals"] = {
                "kind": "trace",
                "path": str(found[0]),
                "rescale": "sample",
                "start_s": "random",
                "jitter_s": arrivals["jitter_s"],
            }
        stream["lengths"] = {"kind": "trace"}
    return _validated(data)


def _validated(data: dict[str, Any]) -> WorkloadConfig:
    try:
        return WorkloadConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where} = {first['input']!r}: {first['msg']}") from None
