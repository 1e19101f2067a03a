"""Pools and queues of every region from one description, so that a file need not write each by hand.

In a scenario's plain data a pool, or a shared queue, with `region: "*"` stands for one in each of the
scenario's regions, called NAME-REGION. Routes that name it mean all of them: `pools: [bloom]` becomes
`pools: [bloom-us-west, bloom-us-east]`, and `queue: background` becomes `region_queues`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EVERYWHERE = "*"


def in_every_region(data: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario's data with pools and queues of each region; what is not a mapping or list stays as it is.

    Raises:
        ValueError: a part is to be everywhere, but the scenario names no regions.
    """
    fleet = data.get("fleet")
    if not isinstance(fleet, Mapping):
        return dict(data)
    regions = data.get("regions") or ()
    fleet = dict(fleet)
    copies: dict[str, dict[str, dict[str, str]]] = {}
    for kind in ("pools", "queues"):
        parts, copies[kind] = _copied(kind, fleet.get(kind), tuple(regions))
        if copies[kind]:
            fleet[kind] = parts
    if copies["pools"] or copies["queues"]:
        routes = fleet.get("routes")
        if isinstance(routes, (list, tuple)):
            fleet["routes"] = [_renamed(route, copies) for route in routes]
    return {**data, "fleet": fleet}


def _copied(
    kind: str, parts: Any, regions: tuple[str, ...]
) -> tuple[list[Any], dict[str, dict[str, str]]]:
    """Parts with copies in the place of those that are everywhere, and the copies' names by region."""
    found: list[Any] = []
    names: dict[str, dict[str, str]] = {}
    for part in parts if isinstance(parts, (list, tuple)) else ():
        if not (isinstance(part, Mapping) and part.get("region") == EVERYWHERE):
            found.append(part)
            continue
        if not regions:
            raise ValueError(
                f"fleet.{kind}.{part.get('name')}.region = '*': the scenario names no regions"
            )
        names[str(part.get("name"))] = {
            region: f"{part.get('name')}-{region}" for region in regions
        }
        found += [
            {**part, "name": f"{part.get('name')}-{region}", "region": region} for region in regions
        ]
    return found, names


def _renamed(route: Any, copies: Mapping[str, Mapping[str, Mapping[str, str]]]) -> Any:
    if not isinstance(route, Mapping):
        return route
    route = dict(route)
    for field in ("pools", "overflow", "decode_pools"):
        if isinstance(route.get(field), (list, tuple)):
            route[field] = [
                name
                for given in route[field]
                for name in (
                    copies["pools"][given].values() if given in copies["pools"] else (given,)
                )
            ]
    if route.get("queue") in copies["queues"]:
        route["region_queues"] = dict(copies["queues"][route.pop("queue")])
    return route
