"""Reference policies: what published systems, and the autoscalers in use, would order.

`make_policy(name, **parameters)` makes one; docs/policies.md has their rules and constants.
"""

import llmscale_env._interrupt  # noqa: F401
from baselines.make import POLICY_NAMES, make_policy, misfit, policies_for
from baselines.parameters import PolicyError, split_policies

__all__ = ["POLICY_NAMES", "PolicyError", "make_policy", "misfit", "policies_for", "split_policies"]
