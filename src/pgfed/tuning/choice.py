"""Which method a sweep chose, and why, in words: by validation data, client by client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pgfed.methods.roles import Role
from pgfed.model.metrics import Metric
from pgfed.results.caveats import FEW
from pgfed.results.formats import bracketed, count, score
from pgfed.results.statistics import Comparison, Floats, Paired


@dataclass(frozen=True)
class Tried:
    """A try that has finished."""

    method: str
    settings: dict[str, Any]
    validation_score: float  # mean of the last ten rounds
    seconds: float
    key: str
    clients: list[float | None] | None = None  # the same of each of them; before 0.2: unknown


class Choice:
    """The best tries of the methods, held against the best of them.

    ``roles``: a bound (one model on all data together) is shown and never chosen.
    """

    def __init__(
        self, best: Mapping[str, Tried], roles: Mapping[str, Role], metric: Metric
    ) -> None:
        self._best, self._roles, self._metric = best, roles, metric
        able = [m for m in best if roles[m] != "bound"]
        ranked = sorted(able, key=lambda m: -metric.sign * best[m].validation_score)
        self.ranked = [m for m in ranked if not np.isnan(best[m].validation_score)]

    @property
    def method(self) -> str | None:
        """The one that was chosen; none where only bounds were tried."""
        return self.ranked[0] if self.ranked else None

    def lead(self, other: str) -> Comparison | None:
        """By how much the chosen one is better, over clients; None where that is not on record."""
        assert self.method is not None
        a, b = (self._clients(m) for m in (self.method, other))
        if a is None or b is None or a.shape != b.shape or np.isnan(a - b).all():
            return None
        sign = self._metric.sign
        return Paired({"a": sign * a, "b": sign * b}).difference("a", "b")

    def _clients(self, method: str) -> Floats | None:
        found = self._best[method].clients
        if found is None:
            return None
        return np.array([[np.nan if v is None else v for v in found]], dtype=np.float64)

    def lines(self, left_out: Iterable[str] = ()) -> list[str]:
        """What was chosen, what it is clearly better than, and what it is not.

        ``left_out``: methods of the experiment that were not tried by themselves.
        """
        if self.method is None:
            return []
        tried = self._best[self.method]
        with_ = ", ".join(f"{key} = {value}" for key, value in tried.settings.items())
        found = [
            f"Chosen on validation data: {self.method} ({with_}), {self._metric.title} "
            f"{score(tried.validation_score, self._metric)}: the best of "
            f"{count(len(self.ranked), 'method')}."
        ]
        if self._roles[self.method] == "baseline":
            found.append("It trains alone: no federated method that was tried is better here.")
        found += self._compared()
        if names := list(left_out):
            found.append(
                f"Not tried by themselves: {', '.join(names)} (variants follow their base; "
                f"--grid method.{names[0]}.KEY=V1,V2 tries one)."
            )
        return found

    def _compared(self) -> list[str]:
        assert self.method is not None
        leads = {m: lead for m in self.ranked[1:] if (lead := self.lead(m)) is not None}
        if not leads:
            return []
        sure = len(self._best[self.method].clients or ()) >= FEW
        clear = [m for m, lead in leads.items() if sure and lead.low > 0]
        rest = [m for m in leads if m not in clear]

        def named(methods: list[str]) -> str:
            return ", ".join(f"{m} ({bracketed(leads[m], self._metric)})" for m in methods)

        found = [f"Clearly better than {named(clear)}."] if clear else []
        if rest and sure:
            found.append(f"Not clearly better than {named(rest)}: the simplest of these will do.")
        elif rest:
            found.append(f"Its lead over {named(rest)}: of so few clients no more than a hint.")
        return [*found, "In brackets: the lead, with its 95 % interval over clients (one seed)."]
