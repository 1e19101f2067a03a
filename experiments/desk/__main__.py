"""`python -m experiments.desk`: the same as `llmscale`."""

import sys

from experiments.desk.command import main

if __name__ == "__main__":
    sys.exit(main())
