"""Named workloads (YAML): `chat`, `code-burst`, `spike`, `mixed-slo`, `reasoning`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from llmscale_env.workload.config import WorkloadConfig

_HERE = Path(__file__).parent


def mix_names() -> tuple[str, ...]:
    """Names of the shipped mixes."""
    return tuple(sorted(path.stem for path in _HERE.glob("*.yaml")))


def mix_data(name: str) -> dict[str, Any]:
    """A shipped mix as plain data, for a scenario to change before it is validated.

    Raises:
        ValueError: if there is none of this name.
    """
    if name not in mix_names():
        raise ValueError(f"mix = {name!r}: unknown; there are {list(mix_names())}")
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
        for part in (*data.get("streams", []), *data.get("batch_queues", [])):
            part["llm"] = llm
    try:
        return WorkloadConfig.model_validate({**data, "rate_scale": rate_scale})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where} = {first['input']!r}: {first['msg']}") from None
