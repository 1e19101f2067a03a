"""Settings that a sweep found (`baselines.tune`), by policy and scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baselines.parameters import PolicyError
from llmscale_env._reading import Unreadable, read_yaml
from llmscale_env.control.command import Command
from llmscale_env.control.policy import Policy
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario

FOLDER = Path(__file__).parent / "tuned"


def settings_path(
    policy: str, scenario: str, workload: str | None = None, folder: Path = FOLDER
) -> Path:
    """Where the settings of a policy for a scenario are, or for one of its other workloads."""
    of = "" if workload is None else f"_{workload.replace('/', '-')}"
    return folder / f"{policy}_{scenario}{of}.yaml"


def shipped_settings(policy: str, scenario: str, workload: str | None = None) -> Path:
    """Where settings for a scenario are: a world of days has those of its windows, unless it has its own.

    The windows are the scenario NAME-hours. There may be no such file.
    """
    own = settings_path(policy, scenario, workload)
    windows = settings_path(policy, f"{scenario}-hours", workload)
    return windows if windows.is_file() and not own.is_file() else own


def read_settings(
    policy: str, scenario: str, path: Path | None = None, workload: str | None = None
) -> dict[str, Any]:
    """The parameters that a sweep found best (`shipped_settings`, unless `path` names a file).

    Raises:
        PolicyError: there was no sweep for this scenario, or the file is malformed.
    """
    where = path or shipped_settings(policy, scenario, workload)
    of = "" if workload is None else f" workload={workload}"
    if not where.is_file():
        raise PolicyError(
            f"{policy}: no tuned settings for scenario {scenario!r} ({where.name} is not there); make "
            f"them with: python -m baselines.tune policy={policy} env={scenario}{of} "
            "(env=FILE.yaml for a scenario of your own, out=FILE for a policy that it can run)"
        )
    try:
        data = read_yaml(where)
    except Unreadable as error:
        raise PolicyError(f"{where.name}: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("parameters"), dict):
        raise PolicyError(f"{where.name}: must hold a mapping `parameters`")
    return data["parameters"]


class TunedPolicy:
    """A policy that takes the settings which a sweep found best for the scenario.

    Args:
        name: what tables call it.
        policy: the policy's name in the sweep.
        kind: its class.
        settings: path of a file that `baselines.tune` wrote, in place of the shipped one.
        workload: the one that the setting was found for; None: the scenario's own.
        values: parameters that go before the file's.
    """

    def __init__(
        self,
        name: str,
        policy: str,
        kind: Any,
        settings: str | None = None,
        workload: str | None = None,
        **values: Any,
    ) -> None:
        self.name = name
        self._policy, self._kind, self._values = policy, kind, values
        self._path = None if settings is None else Path(settings)
        self._workload = workload
        self._inner: Policy = kind(name, **values)  # a slip is told now, not at reset

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Read the scenario's settings.

        Raises:
            PolicyError: there are none.
        """
        found = read_settings(self._policy, scenario.name, self._path, self._workload)
        self._inner = self._kind(self.name, **{**found, **self._values})
        self._inner.reset(scenario, seed)

    def act(self, view: ClusterView) -> Command:
        """What the policy orders."""
        return self._inner.act(view)
