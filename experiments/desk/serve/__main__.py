"""`python -m experiments.desk.serve`: see `command`."""

from __future__ import annotations

import sys

from experiments.desk.serve.command import main

if __name__ == "__main__":
    sys.exit(main())
