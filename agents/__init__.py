"""Learned policies: train them, evaluate them beside the reference policies, run them anywhere."""

import llmscale_env._interrupt  # noqa: F401
