"""A scenario on other machines: links, machines and GPUs of BlitzScale's tables in place of its own."""

from __future__ import annotations

from typing import Any

from llmscale_env.cluster.machines import Machine, machine
from llmscale_env.scenarios.fleet import FleetConfig
from llmscale_env.scenarios.pools import PoolConfig


def with_links(network: Any, name: str) -> dict[str, Any]:
    """Plain data of a network with a machine's links; what the machine does not have stays.

    Args:
        network: what the scenario says so far: fields, a machine's name, or nothing.
        name: a machine.

    Returns:
        Fields; `startup_s` and `communicator_s` are those of `network`, if it has any.

    Raises:
        ValueError: unknown name.
    """
    fields = dict(network) if isinstance(network, dict) else {}
    fields.pop("machine", None)
    return {**fields, **machine(name).network_fields()}


def card_of(kind: Machine) -> str:
    """GPU card of a machine: the one with PCIe where GPUs have no NVLink."""
    return kind.gpu if kind.nvlink or kind.gpu != "a100-80gb" else "a100-80gb-pcie"


def put_on(data: dict[str, Any], name: str) -> None:
    """Change plain data of a scenario in place to be on machines of that name.

    Links, GPUs per machine and the card of every pool are the machine's. The paper's clusters have so many
    machines; of rented ones there are as many as make the scenario's GPUs. A pool that could take all GPUs
    still can.

    Raises:
        ValueError: unknown name.
    """
    kind = machine(name)
    data["network"] = with_links(data.get("network"), name)
    fleet = data["fleet"]
    before = int(fleet.get("max_gpus", FleetConfig.model_fields["max_gpus"].default))
    total = before if kind.hosts is None else kind.hosts * kind.gpus_per_host
    fleet |= {"max_gpus": total, "gpus_per_host": kind.gpus_per_host}
    for pool in fleet["pools"]:
        tp = int(pool.get("tp", PoolConfig.model_fields["tp"].default))
        if int(pool["max_instances"]) * tp >= min(before, total):
            pool["max_instances"] = total // tp
        pool["gpu"] = card_of(kind)
