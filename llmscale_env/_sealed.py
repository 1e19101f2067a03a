"""Results kept for later, with a checksum: what was changed or cut since is not taken for one."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any


def sealed(data: Any) -> str:
    """One line of JSON: the data and their SHA-256."""
    return json.dumps({"data": data, "sha256": _digest(data)})


def opened(text: str) -> Any:
    """The data of a line that `sealed` made.

    Raises:
        ValueError: it is no such line, or not as it was made.
    """
    try:
        found = json.loads(text)
        data, digest = found["data"], found["sha256"]
    except (KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"no result with a checksum ({error})") from None
    if _digest(data) != digest:
        raise ValueError("was changed since it was written: its SHA-256 is another")
    return data


def _digest(data: Any) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
