"""Finished runs on disk, found again by what they depend on: the case and the code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmscale_env._sealed import opened, sealed
from llmscale_env._writing import replace_file

FORMAT = 2


@dataclass
class RunCache:
    """Rows of finished runs of one experiment.

    A file is written whole or not at all, with a checksum. One that cannot be read, was changed, or holds
    something else is named in `damaged`, and its run is done again.

    Args:
        folder: where the files lie.
        code: fingerprint of the code that the runs depend on.
    """

    folder: Path
    code: str
    damaged: list[Path] = field(default_factory=list)

    def path(self, case: Mapping[str, Any]) -> Path:
        """File of a run."""
        text = json.dumps({"case": case, "code": self.code, "format": FORMAT}, sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"

    def get(self, case: Mapping[str, Any]) -> tuple[list[dict[str, Any]], float] | None:
        """(rows, seconds that the run took), or None if it has to be done."""
        path = self.path(case)
        try:
            found = opened(path.read_text(encoding="utf-8"))
            if found["case"] != dict(case):
                raise ValueError("another run")
            return [dict(row) for row in found["rows"]], float(found["wall_s"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            self.damaged.append(path)
            return None

    def put(
        self, case: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], wall_s: float
    ) -> None:
        """Keep a finished run."""
        data = {"case": dict(case), "wall_s": wall_s, "rows": [dict(row) for row in rows]}
        text = sealed(data)

        def write(part: Path) -> None:
            part.write_text(text, encoding="utf-8")

        replace_file(self.path(case), write)
