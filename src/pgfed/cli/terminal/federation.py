"""What `federation run` and `federation status` show."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pgfed.cli.terminal.experiment import outcomes
from pgfed.errors import UserError
from pgfed.federation.flower.control import Control
from pgfed.federation.folders.folder import FederationFolder
from pgfed.federation.server import status
from pgfed.results.formats import duration, percent, size
from pgfed.results.reader import load

EVERY = 0.5  # seconds between two looks at the status
ASK = 10  # looks between two questions to the SuperLink whether the run is still there


def read(folder: FederationFolder) -> dict[str, Any] | None:
    return status.read(folder.run)


def watch(folder: FederationFolder, control: Control, options: dict[str, Any]) -> bool:
    """Start the run and show it until it ends; False if it failed. Ctrl+C leaves it running."""
    (folder.run / status.FILE).unlink(missing_ok=True)
    number = control.start(options)
    console = Console()
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            _follow(folder, control, number, live)
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
    outcomes(load(folder.run))
    console.print("Each site holds its own model.")
    return True


def _follow(folder: FederationFolder, control: Control, number: int, live: Live) -> None:
    """Show what is new until the run is over: a table on a terminal, lines elsewhere."""
    shown: list[str] = []
    head = ""
    for look in itertools.count():
        content = read(folder) or {}
        for message in content.get("messages", []):
            if message not in shown:
                live.console.print(message, highlight=False)
        shown = content.get("messages", shown)
        if content and live.console.is_terminal:
            live.update(table(content), refresh=True)
        elif content and headline(content) != head:
            head = headline(content)
            live.console.print(head, highlight=False)
        over = content.get("state") in ("finished", "failed")
        if (over or look % ASK == 0) and control.state(number).startswith("finished"):
            return
        time.sleep(EVERY)


def headline(content: dict[str, Any]) -> str:
    if not content["method"]:
        return str(content["state"])
    return (
        f"{content['state']}: {content['method']}, seed {content['seed']}, round "
        f"{content['round']} of {content['rounds']}, accuracy {percent(content['accuracy'])}"
    )


def table(content: dict[str, Any]) -> Table:
    """One line per site."""
    shown = Table(
        title=headline(content),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in ("site", "here"):
        shown.add_column(name, no_wrap=True)
    for name in ("samples", "rounds", "missed", "took", "down", "up", "accuracy"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("now")
    for site in content["sites"]:
        shown.add_row(
            site["name"],
            "yes" if site["here"] else "no",
            f"{site['n_train']:,}",
            str(site["rounds"]),
            str(site["missed"]),
            "" if site["seconds"] is None else duration(site["seconds"]),
            size(site["bytes_down"]),
            size(site["bytes_up"]),
            percent(site["accuracy"]),
            site["doing"],
        )
    return shown
