"""Every table and figure, and the speed benchmarks: each module here is a command."""

import llmscale_env._interrupt  # noqa: F401
