"""`pgfed federation ...` at a site."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pgfed.cli.federation.common import group, keep_log, say
from pgfed.cli.options import ModulePath
from pgfed.errors import UserError, one_line

SiteDir = Annotated[Path, typer.Argument(metavar="SITE_DIR", help="The site's folder.")]


@group.command()
def join(folder: SiteDir) -> None:
    """At a site: take the seat of an invitation, which is read from the input; makes the key here.

    With the folder of a site that was there before: a new key for it.
    """
    from pgfed.federation.folders.invitations import read_token
    from pgfed.federation.site.joining import join

    # Not on the command line: others may see that.
    token = read_token(typer.prompt("Invitation", err=True) if sys.stdin.isatty() else input())
    key = join(folder, token)
    print(f"{folder}: {token.site} at {token.server}, with the key {key}. Next:")
    print(f"  pgfed federation approve {folder}")
    print(f"  pgfed federation site {folder} --data npz:PATH")


@group.command()
def fetch(folder: SiteDir) -> None:
    """At a site: fetch what the server would have it agree to now, and show what is new."""
    from pgfed.federation.folders.folder import SiteFolder
    from pgfed.federation.site.joining import fetch

    new = fetch(SiteFolder(folder))
    if not new:
        print(f"{folder}: nothing is new")
        return
    print(f"{folder}: {', '.join(new)} changed. Next:")
    print(f"  pgfed federation approve {folder}")
    print("  restart the site")


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
    keep_log(place.path / "site.log")
    attend(place, data, say)


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
        print(one_line(line))  # the server wrote it
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
