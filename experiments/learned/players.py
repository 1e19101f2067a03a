"""Who plays in the studies of whole days and of other worlds, and with which settings."""

from __future__ import annotations

from baselines.tuned_settings import FOLDER, settings_path

ENV = "mixed-slo-hours"
PLANNER, PUPIL = "twin", "pupil"
TUNED, AT_TARGET, PUBLISHED = "for reward", "at 99 %", "published"
NAMES = {PLANNER: "planner", PUPIL: "pupil"}


def policy_named(who: str, setting: str) -> str:
    """As `policies=` of `agents.evaluate` takes it.

    Args:
        who: the planner, the pupil that ships, or the name of a reference policy.
        setting: one of the above; of the planner also a price of a late request, of the pupil a quantile.
    """
    if who == PLANNER:
        return who if setting == TUNED else f"{who}:late_price={setting}"
    if who == PUPIL:
        return "pretrained" if setting == TUNED else f"pretrained:quantile={setting}"
    if setting == PUBLISHED:
        return who
    at_target = settings_path(who, ENV, folder=FOLDER / "at-99")
    return f"{who}-tuned" + (f":settings={at_target}" if setting == AT_TARGET else "")
