"""Name all experiments, and what has been run.

    llmscale list [out=DIRECTORY]   (or: python -m experiments.list ...)

"quick" and "paper" say whether results of that scale lie in DIRECTORY ("results" if left out):
"yes", "old" if they were made by other code than is here now, or "damaged".

Examples:
    llmscale list
    llmscale list out=my-results
    llmscale list | grep chiron
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.harness.catalogue import SCALES, Entry, entries
from experiments.harness.fingerprint import fingerprint
from experiments.harness.results import read_result
from experiments.output import RESULTS, text_table
from llmscale_env._cli import parse_options, run_command


def state(entry: Entry, scale: str, folder: Path) -> str:
    """What is there of an experiment at a scale."""
    try:
        result = read_result(folder / entry.name / scale)
    except ValueError:
        return "damaged"
    if result is None:
        return "-"
    return "yes" if result.code == fingerprint(entry.module) else "old"


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it worked, 2 for a slip."""
    return run_command("list", __doc__, words, _list, wordless=True)


def _list(words: list[str]) -> int:
    options = parse_options(words, ("out",))
    folder = Path(options.get("out", RESULTS))
    rows = [(e.name, *(state(e, s, folder) for s in SCALES), e.title) for e in entries()]
    print(text_table(("name", *SCALES, "what it shows"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
