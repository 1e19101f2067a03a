"""`python -m llmscale_env.calibrate`."""

import sys

from llmscale_env.calibrate import main

if __name__ == "__main__":
    sys.exit(main())
