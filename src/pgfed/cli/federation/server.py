"""`pgfed federation ...` at the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pgfed.cli.federation.common import Folder, group, keep_log, say, sites_of
from pgfed.cli.options import ModulePath
from pgfed.errors import UserError

NOUNS = {"classes": "classes", "labels": "labels", "values": "targets", "masks": "classes"}


@group.command()
def init(
    folder: Folder,
    sites: Annotated[
        str,
        typer.Option(
            metavar="N|A,B,...", help="The sites that may take part: how many, or their names."
        ),
    ],
    experiment: Annotated[
        Path | None, typer.Option(metavar="TOML", help="What is trained; else PGFed, 20 rounds.")
    ] = None,
    server: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The server, as the sites reach it.")
    ] = "127.0.0.1:8000",
    classes: Annotated[
        str | None,
        typer.Option(metavar="N|A,B,...", help="The classes: how many, or their names."),
    ] = None,
    shape: Annotated[
        str | None, typer.Option(metavar="CxHxW|F", help="The shape of one input.")
    ] = None,
    with_keys: Annotated[
        bool,
        typer.Option(
            "--with-keys", help="Make the sites' keys and folders here, to be handed out by you."
        ),
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without TLS; on one machine only.")
    ] = False,
    module_path: ModulePath = None,
) -> None:
    """Write a federation's folder: its certificates, what is agreed on, and what is trained."""
    from pgfed.federation.folders import making

    agreement = making.init(
        folder,
        sites=sites_of(sites, "--sites"),
        experiment=experiment,
        server=server,
        classes=_classes(classes),
        shape=_shape(shape),
        insecure=insecure,
        with_keys=with_keys,
    )
    shape_ = "x".join(map(str, agreement.input_shape))
    outputs = f"{len(agreement.classes)} {NOUNS[agreement.targets]}"
    print(f"{folder}: {agreement.seats} seats; inputs {shape_}, {outputs}. Next:")
    print(f"  here       pgfed federation server {folder}")
    if with_keys:
        print(f"  each site  takes its folder out of {folder / 'sites'}, over a channel you trust")
    else:
        print(f"  here       pgfed federation invite {folder}      for each site")
        print("  each site  pgfed federation join FOLDER      and gives that invitation")
    print("             pgfed federation approve FOLDER")
    print("             pgfed federation site FOLDER --data npz:PATH")
    print(f"  here       pgfed federation run {folder}")


@group.command()
def server(
    folder: Folder,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was interrupted, if any.")
    ] = False,
    module_path: ModulePath = None,
) -> None:
    """Run the server until stopped: it listens for the sites, and for this command's siblings."""
    from pgfed.federation.folders.folder import FederationFolder
    from pgfed.federation.server.process import serve

    place = FederationFolder(folder)
    keep_log(place.server / "server.log")
    serve(place, say, resume=resume)


@group.command()
def run(
    folder: Folder,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that was interrupted.")
    ] = False,
    round_timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long a site may take.")
    ] = 600.0,
    min_replies: Annotated[
        int, typer.Option(min=1, help="A round with fewer replies is asked for again.")
    ] = 1,
    keep_personal_models: Annotated[
        bool, typer.Option(help="Copy the models of sites that allow it (share_model) here.")
    ] = False,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Go on with sites whose data or versions have changed since the run began.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Run the federation's experiment over the sites that are connected."""
    from pgfed.cli.terminal.federation import watch
    from pgfed.federation.folders.folder import FederationFolder

    place = FederationFolder(folder)
    place.check_run(resume=resume)
    options: dict[str, Any] = {
        "resume": resume,
        "round_timeout": round_timeout,
        "min_replies": min_replies,
        "keep_personal_models": keep_personal_models,
        "accept_changes": accept_changes,
    }
    if not watch(place, options, as_json=as_json):
        raise typer.Exit(1)


@group.command()
def rollback(
    folder: Folder,
    round: Annotated[int, typer.Option(min=1, help="The last round that is to count.")],
) -> None:
    """Take back the last rounds of a run that is stopped; `run --resume` goes on from there."""
    from pgfed.federation.folders.folder import FederationFolder
    from pgfed.federation.server import control, notes

    place = FederationFolder(folder)
    if control.is_running(place):
        raise UserError(f"{folder}: a run is going on; stop it first")
    what = notes.roll_back(place, round)
    print(f"{what}: back after round {round}; go on with `pgfed federation run {folder} --resume`")


@group.command("renew-certificate")
def renew_certificate(folder: Folder) -> None:
    """Make the server a new key and certificate; the sites need nothing new."""
    from pgfed.federation.folders.folder import FederationFolder
    from pgfed.federation.folders.keys import make_server_key
    from pgfed.federation.server import control

    place = FederationFolder(folder)
    make_server_key(place.server, place.agreement.federation, place.agreement.hosts)
    print(f"{place.server / 'server.crt'}: renewed; {control.tell(place, 'renew')}")


@group.command()
def stop(folder: Folder) -> None:
    """Stop the server; `server --resume` goes on with what it was doing."""
    from pgfed.federation.folders.folder import FederationFolder
    from pgfed.federation.server import control

    control.ask(FederationFolder(folder), "stop")
    print(f"{folder}: the server stops")


@group.command()
def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show how the federation stands, site by site; exit code 1 if something is wrong."""
    from pgfed.cli.terminal import federation as watching
    from pgfed.federation.folders.folder import FederationFolder

    standing = watching.look(FederationFolder(folder))
    if as_json:
        print(json.dumps(standing))
    else:
        watching.show(standing)
    if standing["wrong"]:
        raise typer.Exit(1)


def _classes(text: str | None) -> list[str] | None:
    if text is None:
        return None
    if text.isdecimal() and int(text) <= 10_000:
        return [str(k) for k in range(int(text))]
    return [name.strip() for name in text.split(",")]


def _shape(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if not all(part.isdecimal() and int(part) for part in parts) or len(parts) not in (1, 3):
        raise UserError(f"--shape: found {text!r}; allowed: CxHxW, as 3x32x32, or F, as 40")
    return [int(part) for part in parts]
