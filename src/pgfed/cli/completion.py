"""What a shell offers after TAB: methods, keys of --set, run folders. Quick: torch only for a
method's own keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pgfed.methods import registry as algorithms


def complete_method(incomplete: str) -> list[tuple[str, str]]:
    """Of a list with commas its last name."""
    before, comma, name = incomplete.rpartition(",")
    return [
        (f"{before}{comma}{known}", entry.summary)
        for known, entry in algorithms.NAMES.items()
        if known.startswith(name)
    ]


def complete_key(incomplete: str) -> list[tuple[str, str]]:
    """A key of the experiment file, or a table."""
    from pgfed.config.reference import METHOD, find, table_keys

    known = {key.name: key.meaning for key in table_keys() if "NAME" not in key.name}
    _, _, method = incomplete.partition(f"{METHOD}.")
    name, dot, _ = method.partition(".")
    if dot and name in algorithms.NAMES:
        known |= {key.name: key.meaning for key in find(f"{METHOD}.{name}")}
    else:
        known |= {f"{METHOD}.{name}.": entry.summary for name, entry in algorithms.NAMES.items()}
    return [(key, meaning) for key, meaning in known.items() if key.startswith(incomplete)]


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """KEY=, of --set; behind the = nothing is offered."""
    if "=" in incomplete:
        return []
    return [
        (key if key.endswith(".") else f"{key}=", meaning)
        for key, meaning in complete_key(incomplete)
    ]


def complete_run(incomplete: str) -> list[str]:
    """Run folders, and folders on the way to one; those in runs/ without being asked for."""
    places = [incomplete] if incomplete else ["", "runs/"]
    return sorted({found for place in places for found in _folders(place)})


def _folders(start: str) -> Iterator[str]:
    parent, _, name = start.rpartition("/")
    place = Path(f"{parent}/" if "/" in start else ".").expanduser()
    try:
        found = sorted(place.iterdir())
    except OSError:
        return
    for path in found:
        if path.is_dir() and path.name.startswith(name) and not path.name.startswith("."):
            text = f"{parent}/{path.name}" if "/" in start else path.name
            is_run = (path / "experiment.toml").is_file()
            yield text if is_run else f"{text}/"
