"""The methods and settings for people: lists, and one in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from pgfed.cli.terminal.tables import console, table

if TYPE_CHECKING:
    from pgfed.config.reference import Key
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


def settings(keys: Sequence[Key]) -> None:
    """Keys, a table of the file after the other."""
    screen = console()
    for number, (title, found) in enumerate(groupby(keys, key=lambda key: key.table)):
        name = f"\\[{title}]" if title else "At the top of the file"
        screen.print(f"\n{name}" if number else name, style="bold")
        rows = [(key.leaf, key.default, key.meaning, key.allowed) for key in found]
        screen.print(table(("key", "default", "meaning", "allowed"), rows))


def setting(key: Key) -> None:
    """One key, in full."""
    from pgfed.config.reference import NO_DEFAULT

    value = ", without a default" if key.default == NO_DEFAULT else f" = {key.default}"
    say(f"{key.name}{value}")
    say(f"  meaning  {key.meaning}")
    say(f"  allowed  {key.allowed}")
    if key.table == "train":
        say(f"  [method.NAME] {key.leaf} overrides it for one method")


def say(text: str) -> None:
    console().print(text, markup=False, soft_wrap=True)
