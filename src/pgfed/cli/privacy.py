"""`pgfed privacy ...`: what privacy will cost, and what a site's ledger says. torch on use."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgfed.cli.options import AsJson, DataRoot, ExperimentFile, Group, Settings
from pgfed.errors import UserError

if TYPE_CHECKING:
    from pgfed.engine.setup import Setup
    from pgfed.federation.folders.folder import SiteFolder
    from pgfed.federation.site.ledger import Entries, Ledger, Line
    from pgfed.privacy.planning import Plan

NONE = "`pgfed privacy open`, or the site's start, opens it"
SiteDir = Annotated[Path, typer.Argument(metavar="SITE", help="The site's folder.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        cls=Group, help="Plan what privacy costs, and read a site's ledger.", no_args_is_help=True
    )
    group.command("plan")(plan)
    group.command("ledger")(ledger)
    group.command("open")(open_)
    group.command("repair")(repair)
    app.add_typer(group, name="privacy")


# -- before a run --------------------------------------------------------------------------------


def plan(
    experiment: ExperimentFile = None,
    settings: Settings = None,
    data_root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Say what each method releases, the noise that goes with it, and how much signal is left."""
    from pgfed.cli.terminal.tables import console, table
    from pgfed.config import experiment as experiments
    from pgfed.engine.setup import prepare

    loaded = experiments.load(experiment, settings or [])
    if not loaded.privacy.on:
        raise UserError(
            "privacy: the experiment has none; give privacy.epsilon, as --set privacy.epsilon=3.0"
        )
    setup = prepare(loaded, experiments.data_root(data_root))
    assert setup.privacy is not None, "it is on"
    seed = setup.experiment.seeds[0]
    made = {name: plans[seed] for name, plans in setup.privacy.plans.items()}
    columns = ["method", "gradients", "sums", "noise", "of sums", "epsilon", "kappa", "model"]
    rows = [_row(setup, name, plans) for name, plans in made.items()]
    if as_json:
        print(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))
        return
    screen = console()
    screen.print(table(columns, [_cells(row) for row in rows]))
    for name in setup.methods:
        if name not in made:
            screen.print(f"{name}: nothing of it is charged")
    screen.print(_words(setup, made))


def _row(setup: Setup, name: str, plans: tuple[Plan, ...]) -> list[Any]:
    """The client with the least signal stands for all."""
    from pgfed.engine.personal import covered

    worst = min(plans, key=lambda one: one.kappa)
    return [
        name,
        worst.count(gradients=True),
        worst.count(gradients=False),
        worst.noise.get("gradient", 0.0),
        {kind: sigma for kind, sigma in worst.noise.items() if kind != "gradient"},
        max((one.spent for one in plans), key=lambda spent: spent.epsilon).shown,
        worst.kappa if math.isfinite(worst.kappa) else None,
        "covered" if covered(setup.methods[name]) else "stays at home",
    ]


def _cells(row: list[Any]) -> list[Any]:
    name, gradients, sums, noise, of_sums, epsilon, kappa, model = row
    each = ", ".join(f"{sigma:.1f}" for sigma in of_sums.values())
    signal = "no noise" if kappa is None else f"{kappa:.1f}"
    return [name, gradients, sums or "", f"{noise:.2f}", each, epsilon, signal, model]


def _words(setup: Setup, made: dict[str, tuple[Plan, ...]]) -> str:
    """What it comes to, in plain sentences."""
    from pgfed.privacy.planning import LITTLE

    assert setup.privacy is not None, "it is on"
    some = next(iter(made.values()))
    sizes = sorted({one.size for one in some})
    span = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    lines = [
        f"Per {setup.privacy.unit}, client, method and seed, with delta = {some[0].spent.delta:g}; "
        f"clients declare {span} {setup.privacy.unit}s; the model has {some[0].d:,} parameters.",
        "kappa is signal over noise if all gradients agreed, at the client where it is least; it "
        f"does not predict accuracy, but below {LITTLE:g} expect little.",
    ]
    least = min((one for plans in made.values() for one in plans), key=lambda one: one.kappa)
    if least.kappa < LITTLE:
        # Noise falls nearly as 1 / size at the same number of passes, signal stays.
        needed = least.size * LITTLE / max(least.kappa, 1e-9)
        digits = 10 ** max(0, len(str(int(needed))) - 2)
        rounded = int(needed // digits + 1) * digits
        lines.append(
            f"A site needs about {rounded:,} {setup.privacy.unit}s for this model, or a smaller "
            "model, fewer rounds, or a larger epsilon."
        )
    return "\n".join(lines)


# -- at a site -----------------------------------------------------------------------------------


def ledger(site: SiteDir, as_json: AsJson = False) -> None:
    """Show what a site's records have been promised, and what has been spent of it."""
    from pgfed.cli.terminal.tables import console, table

    _, book = _book(site)
    _check_exists(book)
    with book.locked() as entries:
        if as_json:
            print(json.dumps(entries.lines, indent=2))
            return
        _shown(book, entries)
        rows = [
            [
                line["run"][:8],
                f"{line['epsilon']:.3f}",
                f"{line['delta']:.2g}",
                sum(times for _, _, times in line["rounds"]),
                sum(charge["run"] == line["run"] for charge in entries.of("charge")),
            ]
            for line in entries.of("plan")
        ]
    if rows:
        columns = ["run", "epsilon", "delta", "rounds planned", "answered"]
        console().print(table(columns, rows))


def open_(
    site: SiteDir,
    epsilon: Annotated[
        float | None, typer.Option(help="Change the budget of a ledger that is open.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="And its delta, of which runs take a share, too.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for the ledger.")] = "",
) -> None:
    """Open the ledger of a site, as its site.toml has it; or change its budget."""
    folder, book = _book(site)
    if epsilon is None:
        if delta is not None or reason:
            raise UserError(
                "--epsilon: missing; --delta and --reason change a budget, of which it is a part"
            )
        if not folder.file.private.on:
            raise UserError(f"privacy.epsilon: missing in {site / 'site.toml'}; give a budget")
        from pgfed.federation.site.answers import Site

        Site(folder)
        with book.locked() as entries:
            _shown(book, entries)
        return
    from pgfed.methods.settings import check_bounds
    from pgfed.privacy.planning import check_delta

    if not reason:
        raise UserError("--reason: missing; the ledger keeps why its budget was changed")
    _check_exists(book)
    with book.locked() as entries:
        opened = _opened(book, entries)
        same = entries.budget[1] if delta is None else delta
        changed = replace(folder.file.private, epsilon=epsilon, delta=same)
        check_bounds(changed, "privacy")
        check_delta(changed, int(opened["size"]))
        book.append(entries, "budget", epsilon=changed.epsilon, delta=changed.delta, reason=reason)
        _shown(book, entries)
    print(
        f"Put privacy.epsilon = {changed.epsilon} and privacy.delta = {changed.delta} into "
        "site.toml."
    )


def repair(
    site: SiteDir, reason: Annotated[str, typer.Option(help="Why, for the ledger.")] = ""
) -> None:
    """After an old ledger was put back: count as spent all that may have left meanwhile."""
    from pgfed.federation.site import ledger as ledgers

    if not reason:
        raise UserError("--reason: missing; the ledger keeps why it was repaired")
    folder, book = _book(site)
    _check_exists(book)
    table = folder.file.private
    line = ledgers.repair(book, reason, table.epsilon or 0.0, table.delta if table.on else 0.0)
    print(f"{book.folder}: epsilon {line['epsilon']:.3f} counts as spent; nothing is left")


def _book(site: Path) -> tuple[SiteFolder, Ledger]:
    from pgfed.federation.folders.folder import SiteFolder
    from pgfed.federation.site.ledger import ledger_of

    folder = SiteFolder(site)
    if not folder.file.data:
        raise UserError(f"data: missing in {site / 'site.toml'}; the ledger lies beside the data")
    return folder, ledger_of(folder)


def _check_exists(book: Ledger) -> None:
    """Before anything is made where nothing is to be changed."""
    if not book.exists and book.seen() is None:
        raise UserError(f"{book.folder}: no ledger is open; {NONE}")


def _opened(book: Ledger, entries: Entries) -> Line:
    if entries.opened is None:  # its first line was cut short
        raise UserError(f"{book.folder}: no ledger is open; {NONE}")
    return entries.opened


def _shown(book: Ledger, entries: Entries) -> None:
    opened = _opened(book, entries)
    (epsilon, delta), (spent, _) = entries.budget, entries.reserved
    print(f"{book.folder}: {len(entries.lines)} lines, ends {entries.head[:16]}")
    print(
        f"epsilon {spent:.3f} of {epsilon:g} reserved, delta {delta:g}; unit {opened['unit']}, "
        f"{opened['size']:,} declared"
    )
