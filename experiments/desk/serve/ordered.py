"""How many pods should serve now, from those that are ordered and those that may still load.

A pod that is not seen may load, or may serve under load while its metrics are dark. So silence excuses a pod
for a while only: `load_s` and some slack, from an order that raised the count, or from its first listing as
a target. After that, or if it has served before, it is *missing* until it serves.

- Pods that the first look finds silent are missing: since when they load is not known.
- A target that vanished and comes back is no new pod.
- With a known replica count, silent pods are excused up to its last rises, and up to the new targets. Each
  pod that begins to serve uses one up.
- Without one, the targets are what is ordered. A target that vanishes is missing as well, unless it drained,
  still loaded, or the last order was for fewer pods. A new target replaces it. If none comes, it is taken
  for deleted once the excuse of a new pod would have ended, but only while at least half of the pods serve.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

Key = tuple[str, str]
"""Namespace and name of a pod."""

FORMER_S = 3600.0
"""For so long a name is remembered after its target has vanished."""


@dataclass(frozen=True)
class Found:
    """What a look found.

    Attributes:
        ordered: pods that there should be, those that load included.
        expected: of them, those that should serve.
        missing: pods that should serve and do not, as far as their names are known.
    """

    ordered: int
    expected: int
    missing: tuple[Key, ...]


@dataclass
class Ordered:
    """See the module; remembers what it needs from look to look.

    Attributes:
        load_s: from an order of a pod until it serves.
    """

    load_s: float
    _since: dict[Key, float | None] = field(default_factory=dict, init=False)
    _served: set[Key] = field(default_factory=set, init=False)
    _draining: Set[Key] = field(default_factory=frozenset, init=False)
    _former: dict[Key, float] = field(default_factory=dict, init=False)
    _vanished: dict[Key, float] = field(default_factory=dict, init=False)
    _rises: list[tuple[float, int]] = field(default_factory=list, init=False)
    _replicas: int | None = field(default=None, init=False)
    _before: int | None = field(default=None, init=False)

    def look(
        self,
        now_s: float,
        targets: Set[Key],
        serving: Set[Key],
        draining: Set[Key],
        replicas: int | None,
        order: int | None,
        slack_s: float,
    ) -> Found:
        """What there should be at a time.

        Args:
            now_s: later than at the look before.
            targets: pods that are listed.
            serving: of them, those that serve and do not drain.
            draining: pods that are being deleted, or were before they vanished.
            replicas: ordered in Kubernetes; None: not known.
            order: the last one of the policy; None: none.
            slack_s: added to `load_s`: until an order is carried out, and seen.
        """
        patience_s = self.load_s + slack_s
        self._settle(now_s, targets, draining, order, patience_s)
        begun = len(serving - self._served)
        self._served = (self._served | serving) & targets
        loading = len(self._loading(now_s, patience_s))
        if replicas is None:
            there = len(targets - draining)
            if 2 * len(serving) >= there + len(self._vanished):
                self._vanished = {
                    key: at_s for key, at_s in self._vanished.items() if now_s - at_s <= patience_s
                }
            ordered = there + len(self._vanished)
        else:
            self._vanished.clear()
            self._rise(now_s, replicas, begun, patience_s)
            loading = max(loading, sum(n for _, n in self._rises))
            ordered = replicas
        silent = targets - draining - serving - self._loading(now_s, patience_s)
        self._draining, self._before = draining, ordered
        return Found(
            ordered, max(0, ordered - loading), tuple(sorted(silent | set(self._vanished)))
        )

    def _loading(self, now_s: float, patience_s: float) -> set[Key]:
        """New targets that have not served, and need not yet."""
        return {
            key
            for key, since_s in self._since.items()
            if since_s is not None and key not in self._served and now_s - since_s <= patience_s
        }

    def _settle(
        self,
        now_s: float,
        targets: Set[Key],
        draining: Set[Key],
        order: int | None,
        patience_s: float,
    ) -> None:
        """Targets that vanished, and new ones."""
        self._former = {k: at_s for k, at_s in self._former.items() if now_s - at_s <= FORMER_S}
        loading = self._loading(now_s, patience_s)
        vanished = sorted(self._since.keys() - targets)
        lost = [key for key in vanished if key not in draining | self._draining | loading]
        fewer = 0 if order is None or self._before is None else max(0, self._before - order)
        self._vanished.update(dict.fromkeys(lost[fewer:], now_s))
        for key in vanished:
            del self._since[key]
            self._former[key] = now_s
        for key in sorted(targets - self._since.keys()):
            known = self._before is None or key in self._former
            self._since[key] = None if known else now_s
            self._former.pop(key, None)
            if self._vanished:
                self._vanished.pop(key if key in self._vanished else next(iter(self._vanished)))

    def _rise(self, now_s: float, replicas: int, begun: int, patience_s: float) -> None:
        """Rises of the replica count that silent pods are still excused by."""
        kept = [(until_s, n) for until_s, n in self._rises if until_s >= now_s]
        change = 0 if self._replicas is None else replicas - self._replicas
        if change > 0:
            kept.append((now_s + patience_s, change))
        self._rises = _less(_less(kept, begun)[::-1], max(0, -change))[::-1]
        self._replicas = replicas


def _less(rises: list[tuple[float, int]], n: int) -> list[tuple[float, int]]:
    """Without `n` of them, from the first on."""
    left = []
    for until_s, k in rises:
        taken = min(k, n)
        n -= taken
        if k > taken:
            left.append((until_s, k - taken))
    return left
