"""The Flower app: what `flwr run` starts at the server, and a stock SuperNode at a site.

`pgfed federation server` and `site` are the usual way. With Flower's own commands, the server finds
its folder in the environment variable PGFED_FEDERATION, and a site in its node's configuration:
``flower-supernode ... --node-config 'site="SITE_DIR"'``.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from pgfed.errors import UserError
from pgfed.federation.folders.folder import FederationFolder, SiteFolder
from pgfed.federation.site.answers import Site
from pgfed.modules import search_handed_on

ACTION = "pgfed"  # the one kind of message; what it asks for is in its head
FOLDER = "PGFED_FEDERATION"

client = ClientApp()
server = ServerApp()


@client.query(ACTION)
def answer(message: Message, context: Context) -> Message:
    site = _site(str(context.node_config["site"]))
    return Message(site.answer(message.content, context.node_id), reply_to=message)


@cache
def _site(folder: str) -> Site:
    return Site(SiteFolder(Path(folder)))


@server.main()
def main(grid: Grid, context: Context) -> None:
    from pgfed.federation.server.conduct import Options, conduct

    if FOLDER not in os.environ:
        raise UserError(f"{FOLDER}: not set; it names the federation's folder")
    search_handed_on()
    conduct(grid, FederationFolder(Path(os.environ[FOLDER])), Options.of(context.run_config))
