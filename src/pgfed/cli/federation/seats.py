"""`pgfed federation ...`: who may take part, at the server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgfed.cli.federation.common import Folder, group, sites_of
from pgfed.errors import UserError

if TYPE_CHECKING:
    from pgfed.federation.folders.folder import FederationFolder

SiteName = Annotated[str, typer.Argument(metavar="SITE", help="Its name, as site-00.")]


@group.command("remove-site")
def remove_site(folder: Folder, name: SiteName) -> None:
    """Shut a site out, at once, and withdraw its invitation; its seat is empty then."""
    from pgfed.federation.folders.folder import FederationFolder
    from pgfed.federation.folders.invitations import withdraw

    place = FederationFolder(folder)
    key = place.key(place.seat(name))
    admitted, invited = key.is_file(), withdraw(place, name)
    if not (admitted or invited):
        raise UserError(f"{name}: has no key in {key.parent}; its seat is empty already")
    key.unlink(missing_ok=True)
    done = "removed" if admitted else "its invitation is withdrawn"
    print(f"{name}: {done}; {_admitted(place)}")


@group.command("add-site")
def add_site(
    folder: Folder,
    name: SiteName,
    key: Annotated[Path, typer.Option(metavar="PUB", help="The site's public key, site.pub.")],
) -> None:
    """Admit a site to an empty seat by its public key, which it made itself."""
    from pgfed.engine.storage.durable import write_atomic
    from pgfed.federation.folders.folder import FederationFolder
    from pgfed.federation.folders.invitations import check_new, withdraw
    from pgfed.federation.folders.keys import load_public

    place = FederationFolder(folder)
    own = place.key(place.seat(name))
    if own.is_file():
        raise UserError(f"{name}: has a key already; `remove-site` takes it away")
    check_new(place, name, load_public(key))
    withdraw(place, name)
    write_atomic(own, key.read_bytes())
    print(f"{name}: added; {_admitted(place)}")


@group.command()
def invite(
    folder: Folder,
    name: Annotated[
        str | None, typer.Argument(metavar="SITE", help="Its seat, as site-00; else the first.")
    ] = None,
    hours: Annotated[
        float, typer.Option(min=0.01, max=8760, help="How long the invitation holds.")
    ] = 24.0,
) -> None:
    """Invite a site to an empty seat: prints the one line that it needs to join, once."""
    from pgfed.federation.folders import invitations
    from pgfed.federation.folders.folder import FederationFolder

    place = FederationFolder(folder)
    client = invitations.first_empty(place) if name is None else place.seat(name)
    token = invitations.invite(place, client, hours)
    print(token)
    told = _admitted(place)
    print(
        f"{token.site}: invited for {hours:g} hours; {told}. Give the line above to the site over "
        "a channel you trust; there: pgfed federation join SITE_DIR",
        file=sys.stderr,
    )


@group.command("add-seats")
def add_seats(
    folder: Folder,
    more: Annotated[
        str, typer.Argument(metavar="N|A,B,...", help="How many more, or their names.")
    ],
) -> None:
    """Make room for more sites, between runs; every site has to fetch and approve that."""
    from pgfed.federation.folders import making
    from pgfed.federation.folders.folder import FederationFolder
    from pgfed.federation.server import conduct

    place = FederationFolder(folder)
    if conduct.unfinished(place) is not None:
        raise UserError(f"{place.run}: holds a run that is not over; seats change between runs")
    place = making.add_seats(place, sites_of(more, "add-seats"))
    print(f"{folder}: {place.agreement.seats} seats now; {_admitted(place)}. Next:")
    print(f"  here            pgfed federation invite {folder}      for each new site")
    print("  sites of today  pgfed federation fetch SITE_DIR, then approve and restart")


def _admitted(place: FederationFolder) -> str:
    from pgfed.federation.server import control

    return control.tell(place, "admit")
