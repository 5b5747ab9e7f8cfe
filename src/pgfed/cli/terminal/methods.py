"""The methods for people: a list, and one in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pgfed.cli.terminal.tables import console, table

if TYPE_CHECKING:
    from pgfed.methods.contract import Algorithm


def methods(summaries: Mapping[str, str]) -> None:
    console().print(table(("method", "what it does"), summaries.items()))


def method(name: str, summary: str, cls: type[Algorithm]) -> None:
    """Its settings, what leaves a site, what the server sees."""
    from pgfed.config import description as explain

    screen = console()
    screen.print(f"{name}: {summary}", markup=False, soft_wrap=True)
    own, shared = explain.settings(cls)
    for title, found in ((f"method.{name}", own), ("train", shared)):
        if found:
            screen.print(f"\nSettings, [{title}]:", markup=False)
            rows = [(p.name, explain.default(p), p.meaning, p.allowed) for p in found]
            screen.print(table(("key", "default", "meaning", "allowed"), rows))
    leaving, once = explain.leaving(cls), explain.leaving_once(cls)
    if not leaving and not once:
        screen.print("\nNothing leaves a client but its scores (samples, loss, metrics).")
        return
    _list("\nLeaves a client in each round it takes part in:", leaving)
    if once:
        _list("\nLeaves each client once, after the last round, for the global model:", once)
    beside = "Nothing else leaves a client but its scores (samples, loss, metrics)."
    _list(f"\n{beside} The server can see:", explain.seen(cls))


def _list(title: str, lines: Iterable[str]) -> None:
    screen = console()
    screen.print(title)
    for line in lines:
        screen.print(f"- {line}", markup=False, soft_wrap=True)
