"""`pgfed federation ...`: a real federation across machines, on Flower."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgfed.cli.options import ModulePath
from pgfed.errors import UserError

if TYPE_CHECKING:
    from pgfed.federation.folders.folder import FederationFolder

group = typer.Typer(help="Run a real federation: a server and sites that keep their data.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.")]

SiteName = Annotated[str, typer.Argument(metavar="SITE", help="Its name, as site-00.")]
SiteDir = Annotated[Path, typer.Argument(metavar="SITE_DIR", help="The site's folder.")]


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="federation")


@group.callback()
def _needs_flower() -> None:
    if find_spec("flwr") is None:
        raise UserError(
            "pgfed federation: needs Flower; install it with `pip install pgfed[flower]`"
        )


@group.command()
def init(
    folder: Folder,
    sites: Annotated[int, typer.Option(min=1, max=10_000, help="How many sites may take part.")],
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
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without TLS; on one machine only.")
    ] = False,
    module_path: ModulePath = None,
) -> None:
    """Write everything for a federation: certificates, keys, and a folder per site."""
    from pgfed.federation.folders import making

    agreement = making.init(
        folder,
        sites=sites,
        experiment=experiment,
        server=server,
        classes=_classes(classes),
        shape=_shape(shape),
        insecure=insecure,
    )
    shape_ = "x".join(map(str, agreement.input_shape))
    print(f"{folder}: {sites} seats; inputs {shape_}, {len(agreement.classes)} classes. Next:")
    print(f"  here       pgfed federation server {folder}")
    print(f"  each site  takes its folder out of {folder / 'sites'}, then, with its own data:")
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

    _log()
    serve(FederationFolder(folder), _say, resume=resume)


@group.command()
def site(
    folder: SiteDir,
    data: Annotated[
        str,
        typer.Option(
            metavar="KIND:PATH", help="The site's data, as npz:PATH or csv:PATH; else site.toml's."
        ),
    ] = "",
    module_path: ModulePath = None,
) -> None:
    """Run a site until stopped. The data stays here."""
    from pgfed.federation.folders.folder import SiteFolder
    from pgfed.federation.site.process import attend

    place = SiteFolder(folder)
    if not (data or place.file.data):
        raise UserError(f"--data: needed, or `data` in {folder / 'site.toml'}")
    _log()
    attend(place, data, _say)


@group.command()
def approve(
    folder: SiteDir,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; say yes.")] = False,
    module_path: ModulePath = None,
) -> None:
    """At a site: show what its experiment asks for, and agree to take part in it."""
    from pgfed.federation.folders.folder import SiteFolder, load_experiment
    from pgfed.federation.site import house

    place = SiteFolder(folder)
    experiment, methods = load_experiment(place.experiment_file, place.allowed)
    for line in house.asks(place, experiment, methods):
        print(line)
    if not yes and not typer.confirm("Take part in it?"):
        raise typer.Exit(1)
    house.approve(place, experiment)
    print("approved; a site that is running goes on by itself")


@group.command()
def log(
    folder: SiteDir,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """At a site: show and verify the record of everything that has left it."""
    from pgfed.cli.terminal.federation import show_record
    from pgfed.federation.folders.folder import SiteFolder
    from pgfed.federation.site.record import read

    entries = read(SiteFolder(folder).path)
    if as_json:
        print(json.dumps(entries))
    else:
        show_record(entries)


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
    if not watch(place, options):
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


@group.command("remove-site")
def remove_site(folder: Folder, name: SiteName) -> None:
    """Shut a site out, at once; its seat stays empty until `add-site` gives it to somebody."""
    from pgfed.federation.folders.folder import FederationFolder

    place = FederationFolder(folder)
    key = place.key(place.seat(name))
    if not key.is_file():
        raise UserError(f"{name}: has no key in {key.parent}; its seat is empty already")
    key.unlink()
    print(f"{name}: removed; {_admitted(place)}")


@group.command("add-site")
def add_site(
    folder: Folder,
    name: SiteName,
    key: Annotated[Path, typer.Option(metavar="PUB", help="The site's public key, site.pub.")],
) -> None:
    """Admit a site to an empty seat by its public key, which it made itself."""
    from pgfed.engine.storage.durable import write_atomic
    from pgfed.federation.folders.folder import FederationFolder
    from pgfed.federation.folders.keys import load_public

    place = FederationFolder(folder)
    own = place.key(place.seat(name))
    if own.is_file():
        raise UserError(f"{name}: has a key already; `remove-site` takes it away")
    load_public(key)
    write_atomic(own, key.read_bytes())
    print(f"{name}: added; {_admitted(place)}")


def _admitted(place: FederationFolder) -> str:
    """A server that is running is told."""
    from pgfed.federation.server import control

    if not control.is_there(place):
        return "the server will know when it is started"
    control.ask(place, "admit")
    return "the server knows"


@group.command("renew-certificate")
def renew_certificate(folder: Folder) -> None:
    """Make the server a new key and certificate; the sites need nothing new."""
    from pgfed.federation.folders.folder import FederationFolder
    from pgfed.federation.folders.keys import make_server_key

    place = FederationFolder(folder)
    make_server_key(place.server, place.agreement.federation, place.agreement.hosts)
    print(f"{place.server / 'server.crt'}: renewed; restart the server")


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


def _log() -> None:
    """What a process that runs for weeks says is dated."""
    import logging

    dated = logging.Formatter("%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(dated)
    root = logging.getLogger("pgfed")
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _say(text: str) -> None:
    import logging

    logging.getLogger("pgfed.federation").info(text)


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
