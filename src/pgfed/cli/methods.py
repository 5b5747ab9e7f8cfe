"""`pgfed methods` and `pgfed settings`: what there is to choose from."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pgfed.cli.completion import complete_key, complete_method
from pgfed.cli.options import AsJson, ModulePath
from pgfed.methods import registry as algorithms


def register(app: typer.Typer) -> None:
    app.command()(methods)
    app.command()(settings)


def methods(
    show: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            autocompletion=complete_method,
            help="One method: settings, and what leaves a client.",
        ),
    ] = None,
    as_json: AsJson = False,
    module_path: ModulePath = None,
) -> None:
    """List the methods, or explain one."""
    from pgfed.cli.terminal import methods as screens

    if show is None:
        summaries = {name: entry.summary for name, entry in algorithms.NAMES.items()}
        if as_json:
            print(json.dumps(summaries, indent=2))
        else:
            screens.methods(summaries)
    elif as_json:
        print(json.dumps(_explained(show), indent=2))
    else:
        screens.method(algorithms.folder(show), algorithms.summary(show), algorithms.get(show))


def _explained(name: str) -> dict[str, Any]:
    from pgfed.config import description
    from pgfed.config.reference import find

    cls = algorithms.get(name)
    return {
        "method": algorithms.folder(name),
        "summary": algorithms.summary(name),
        "settings": [asdict(key) for key in find(f"method.{name}")],
        "leaves": description.leaving(cls),
        "leaves_once": description.leaving_once(cls),
        "server_sees": description.seen(cls),
    }


def settings(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]",
            autocompletion=complete_key,
            help="A key, a table, or method.NAME; by default all tables.",
        ),
    ] = None,
    as_json: AsJson = False,
    module_path: ModulePath = None,
) -> None:
    """Explain the keys of an experiment file and of --set: meaning, default, what is allowed."""
    from pgfed.cli.terminal import methods as screens
    from pgfed.config.reference import find, table_keys

    found = table_keys() if key is None else find(key)
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    elif len(found) == 1:
        screens.setting(found[0])
    else:
        screens.settings(found)
        if key is None:
            screens.say(
                "[method.NAME] takes the method's own keys and those of [train] and [personal]: "
                "`pgfed settings method.pgfed`, or `pgfed settings method` for all methods."
            )
