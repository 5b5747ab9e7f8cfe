"""What `federation run` and `federation status` show."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pgfed.errors import UserError
from pgfed.flower import status
from pgfed.flower.control import Control
from pgfed.flower.folder import FederationFolder
from pgfed.words import percent

EVERY = 0.5  # seconds between two looks at the status
ASK = 10  # looks between two questions to the SuperLink whether the run is still there


def read(folder: FederationFolder) -> dict[str, Any] | None:
    return status.read(folder.run)


def watch(folder: FederationFolder, control: Control, options: dict[str, Any]) -> bool:
    """Start the run and show it until it ends; False if it failed. Ctrl+C leaves it running."""
    (folder.run / status.FILE).unlink(missing_ok=True)
    number = control.start(options)
    console = Console()
    told: list[str] = []
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            for look in itertools.count():
                told = _show(folder, live, told)
                if _is_over(folder) or look % ASK == 0:
                    if control.state(number).startswith("finished"):
                        break
                time.sleep(EVERY)
            _show(folder, live, told)
    except UserError as error:
        print(f"pgfed: {error}; then go on with --resume", file=sys.stderr)
        return False
    except KeyboardInterrupt:
        console.print(
            f"The run goes on; `pgfed federation status {folder.path}` shows it, and stopping the "
            "server stops it."
        )
        return True
    content = read(folder)
    if content is None or content["state"] != "finished":
        why = (content or {}).get("error") or f"see {folder.server / 'superlink.log'}"
        print(f"pgfed: the run did not finish: {why}", file=sys.stderr)
        return False
    console.print(table(content))
    console.print(f"{folder.run}: the run folder; each site holds its own model")
    return True


def _is_over(folder: FederationFolder) -> bool:
    return (read(folder) or {}).get("state") in ("finished", "failed")


def _show(folder: FederationFolder, live: Live, told: list[str]) -> list[str]:
    content = read(folder)
    if content is None:
        return told
    messages: list[str] = content["messages"]
    for message in messages:
        if message not in told:
            live.console.print(message, highlight=False)
    if live.console.is_terminal:
        live.update(table(content), refresh=True)
    return messages


def table(content: dict[str, Any]) -> Table:
    """One line per site."""
    where = ""
    if content["method"]:
        where = (
            f", {content['method']} seed {content['seed']}, round {content['round']} of "
            f"{content['rounds']}, accuracy {percent(content['accuracy'])}"
        )
    shown = Table(title=f"{content['state']}{where}", title_justify="left")
    for name in ("site", "here", "samples", "rounds", "missed", "last round", "down", "up"):
        shown.add_column(name, justify="left" if name == "site" else "right")
    for name in ("accuracy", "now"):
        shown.add_column(name)
    for site in content["sites"]:
        seconds = site["seconds"]
        shown.add_row(
            site["name"],
            "yes" if site["here"] else "no",
            f"{site['n_train']:,}",
            str(site["rounds"]),
            str(site["missed"]),
            "" if seconds is None else f"{seconds:.1f} s",
            f"{site['bytes_down'] / 1e6:.1f} MB",
            f"{site['bytes_up'] / 1e6:.1f} MB",
            percent(site["accuracy"]),
            site["doing"],
        )
    return shown
