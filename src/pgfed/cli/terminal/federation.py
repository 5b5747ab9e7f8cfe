"""What `federation run` and `federation status` show."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pgfed.cli.terminal.experiment import outcomes
from pgfed.errors import UserError
from pgfed.federation.folders.folder import FederationFolder
from pgfed.federation.folders.keys import expiry_warning
from pgfed.federation.server import control, status
from pgfed.model.metrics import Metric
from pgfed.report import rendering as reports
from pgfed.results.folder.reader import load
from pgfed.results.formats import duration, score, size
from pgfed.results.summary import summaries

EVERY = 0.5  # seconds between two looks at the status
AWAY = 60.0  # seconds without a sign of life after which a site is missed


# -- how it stands -----------------------------------------------------------------------------


def look(folder: FederationFolder) -> dict[str, Any]:
    """What the server says, what is on record of the run, and what is wrong."""
    server: dict[str, Any] | None = None
    wrong: list[str] = []
    try:
        server = control.ask(folder, "status")
    except UserError as error:
        wrong.append(str(error))
    run = status.read(folder.run)
    if run is not None and not (server and server["running"]):
        if run["state"] not in ("finished", "failed"):
            run["state"] = "interrupted"
        if run["state"] == "interrupted":
            wrong.append(f"the run is interrupted{_because(run['error'])}; go on with --resume")
        elif run["state"] == "failed":
            wrong.append(f"the run failed{_because(run['error'])}")
    elif run is not None and run["error"]:  # it goes on by itself when that is mended
        wrong.append(f"the run waits: {run['error']}")
    if server is not None:
        wrong += [_absence(site) for site in server["sites"] if not _is_here(site)]
        if run is not None and server["running"]:
            away = [site for site in run["sites"] if site["doing"] and not site["here"]]
            wrong += [f"{site['name']} takes no part: {site['doing']}" for site in away]
    if (warning := expiry_warning(folder)) is not None:
        wrong.append(warning)
    return {"folder": str(folder.path), "server": server, "run": run, "wrong": wrong}


def _because(error: str | None) -> str:
    return f": {error}" if error else ""


def _is_here(site: dict[str, Any]) -> bool:
    return site["age"] is not None and site["age"] <= AWAY and not site["refused"]


def _absence(site: dict[str, Any]) -> str:
    if site["refused"]:
        return f"{site['name']} refused: {site['refused']}"
    if site["age"] is None:
        return f"{site['name']} is missing: no sign of life since the server's start"
    return f"{site['name']} is missing: last sign of life {duration(site['age'])} ago"


def show(standing: dict[str, Any]) -> None:
    console = Console()
    run, server = standing["run"], standing["server"]
    if run is None:
        place = standing["folder"]
        print(f"{place}: no run yet; `pgfed federation run {place}` starts one")
        if server is not None:
            console.print(_signs(server) if server["sites"] else "no site has joined yet")
    else:
        console.print(table(run, server))
        for message in run["messages"][-5:]:
            print(message)
    for name, left in (server or {}).get("invited", {}).items():
        print(f"{name}: invited, for {duration(left)} more")
    for line in standing["wrong"]:
        print(line)


def show_record(entries: list[dict[str, Any]]) -> None:
    """What has left a site, a line for each answer."""
    for entry in entries:
        run, method = entry["run"][:8], entry.get("method")
        what = f"{method}, seed {entry['seed']}, round {entry['round']}" if method else ""
        cost = f", epsilon of the run {entry['epsilon']:.3g}" if "epsilon" in entry else ""
        print(
            f"{entry['when']}  run {run}  {entry['kind']:8}  {what}  {size(entry['bytes'])}, norm "
            f"{entry['norm']:.4g}{cost}: {', '.join(entry['keys'])}"
        )
    last = entries[-1]["hash"] if entries else "none"
    print(f"{len(entries)} answers, none changed or missing; the last hash: {last}")


# -- a run, from its start to its end ----------------------------------------------------------


def watch(folder: FederationFolder, options: dict[str, Any], *, as_json: bool) -> bool:
    """Start the run and show it until it ends; False if it failed. Ctrl+C leaves it running.

    ``as_json``: its summary is all that goes to the standard output.
    """
    control.ask(folder, "run", options=options)
    console = Console(stderr=as_json)
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            _follow(folder, live)
    except UserError as error:
        print(f"pgfed: {error} Then go on with --resume", file=sys.stderr)
        return False
    except KeyboardInterrupt:
        console.print(
            f"The run goes on; `pgfed federation status {folder.path}` shows it, and stopping the "
            "server stops it."
        )
        return True
    content = status.read(folder.run)
    if content is None or content["state"] != "finished":
        why = (content or {}).get("error") or "see what the server said"
        print(f"pgfed: the run did not finish: {why}", file=sys.stderr)
        return False
    run, page = load(folder.run), reports.write_page(folder.run) if reports.possible() else None
    if as_json:
        print(json.dumps(summaries(run), indent=2))
        return True
    console.print(table(content, None))
    outcomes(run, page)
    console.print("Each site holds its own model.")
    return True


def _follow(folder: FederationFolder, live: Live) -> None:
    """Show what is new until the run is over: a table on a terminal, lines elsewhere."""
    shown: list[str] = []
    head = ""
    while True:
        server = control.ask(folder, "status")
        content = status.read(folder.run) or {}
        for message in content.get("messages", []):
            if message not in shown:
                live.console.print(message, highlight=False, soft_wrap=True)
        shown = content.get("messages", shown)
        if content and live.console.is_terminal:
            live.update(table(content, server), refresh=True)
        elif content and headline(content) != head:
            head = headline(content)
            live.console.print(head, highlight=False, soft_wrap=True)
        if not server["running"]:
            return
        time.sleep(EVERY)


def headline(content: dict[str, Any]) -> str:
    if not content["method"]:
        return str(content["state"])
    metric = Metric(**content["metric"])
    return (
        f"{content['state']}: {content['method']}, seed {content['seed']}, round "
        f"{content['round']} of {content['rounds']}, {metric.title} "
        f"{score(content['score'], metric)}"
    )


def table(content: dict[str, Any], server: dict[str, Any] | None) -> Table:
    """One line per site; ``server``: who is there, as it knows now."""
    shown, metric = _table(headline(content)), Metric(**content["metric"])
    for name in ("site", "seen"):
        shown.add_column(name, no_wrap=True)
    for name in ("samples", "rounds", "took", "down", "up", metric.title):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("now", no_wrap=True, overflow="ellipsis")  # long reasons stand below
    signs = {sign["name"]: sign for sign in (server["sites"] if server is not None else ())}
    for site in content["sites"]:
        sign = signs.get(site["name"])
        shown.add_row(
            site["name"],
            _seen(sign),
            f"{site['n_train']:,}",
            f"{site['rounds']} of {site['rounds'] + site['missed']}",
            "" if site["seconds"] is None else duration(site["seconds"]),
            size(site["bytes_down"]),
            size(site["bytes_up"]),
            score(site["score"], metric),
            site["doing"],
        )
    return shown


def _signs(server: dict[str, Any]) -> Table:
    """Before the first run: who is there."""
    shown = _table("")
    shown.add_column("site", no_wrap=True)
    shown.add_column("seen", no_wrap=True)
    for sign in server["sites"]:
        shown.add_row(sign["name"], _seen(sign))
    return shown


def _seen(sign: dict[str, Any] | None) -> str:
    if sign is None:
        return "?"
    if sign["refused"]:
        return "refused"
    return "never" if sign["age"] is None else f"{duration(sign['age'])} ago"


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
