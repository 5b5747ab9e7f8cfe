"""A site is master of its house: what it approved, the runs it takes part in, and its limits.

approved.json      the experiments that somebody here has agreed to, by their digest
runs/RUN.json      a run in which this site has a seat, and what it was like when it took it
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import re
import secrets
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pgfed.config.description import LEAVES, leaving, leaving_once
from pgfed.config.privacy import SitePrivacy
from pgfed.config.tables import Experiment
from pgfed.data.federation import Federation
from pgfed.engine import personal
from pgfed.engine.client import ClientError
from pgfed.engine.exchange.compression import make_compression
from pgfed.engine.exchange.replies import Form
from pgfed.engine.storage.durable import DamagedFile, write_atomic
from pgfed.errors import UserError, one_line
from pgfed.federation.flower.records import BadRecord, Head, field
from pgfed.federation.folders.folder import SiteFile, SiteFolder, digest
from pgfed.federation.folders.models import make_model
from pgfed.methods.contract import Algorithm
from pgfed.methods.registry import BASELINE
from pgfed.results.formats import size

APPROVED = "approved.json"

log = logging.getLogger(__name__)


class Refused(Exception):
    """The site will not do what it was asked; the server is told why."""


FAILED = "this site could not do it; its log says why"


def told_of(error: Exception, name: str, *, private: bool) -> str:
    """What the server is told of what went wrong at the site of this name, in words that somebody
    can act on; a path of this machine is told to nobody else.

    Under privacy nothing but what is said of the question: what went wrong inside may hold what
    only samples tell.
    """
    if private and not isinstance(error, Refused | BadRecord):
        log.error("it could not be done", exc_info=error)
        return FAILED
    if isinstance(error, UserError | ClientError | BadRecord | Refused | DamagedFile):
        return one_line(str(error))  # the server's own words may be in it
    if not isinstance(error, OSError):
        log.error("unexpected", exc_info=error)
        return one_line(f"unexpected {type(error).__name__}: {error}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        log.error("disk full: %s", error)
        return f"disk full at {name}"
    log.error("%s", error)
    return f"{error.strerror or type(error).__name__} at the site, which says more in its log"


# -- consent -----------------------------------------------------------------------------------


def approved(folder: SiteFolder) -> dict[str, Any]:
    """When each experiment was approved, by its digest."""
    path = folder.path / APPROVED
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a list of approved experiments")
    return content


def approve(folder: SiteFolder, experiment: Experiment) -> None:
    """This site takes part in runs of this experiment from now on."""
    when = {"experiment": experiment.name, "when": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    known = {**approved(folder), digest(folder.file, experiment): when}
    write_atomic(folder.path / APPROVED, json.dumps(known, indent=2) + "\n")


def check_agreed(head: Head, agreed: str, frozen: str) -> None:
    """Refuse a server that holds another agreement, experiment or model than this site."""
    if field(head, "digest", str) != agreed:
        raise Refused(
            "this site holds another agreement or experiment than the server: `pgfed federation "
            "fetch` at the site takes over the server's; then approve it and restart the site"
        )
    if head.get("frozen", "") != frozen:
        raise Refused(
            "the model's frozen values are others here than at the server (their SHA-256 differs): "
            "compare the files that its factory reads, and the versions of torch"
        )


def check_consent(
    folder: SiteFolder, experiment: Experiment, methods: Mapping[str, Algorithm], n_train: int
) -> None:
    """Before a seat is taken: somebody has said yes, and the limits of site.toml hold."""
    site = folder.file
    if site.max_rounds is not None and experiment.rounds > site.max_rounds:
        raise Refused(
            f"the experiment has {experiment.rounds} rounds; this site allows {site.max_rounds} "
            "(max_rounds in its site.toml)"
        )
    for name, method in methods.items():
        batch = min(method.train.batch_size or n_train, n_train)
        if batch < site.min_batch:
            raise Refused(
                f"{name} trains in batches of {batch}; this site allows none below "
                f"{site.min_batch} (min_batch in its site.toml)"
            )
    if not site.auto_approve and digest(site, experiment) not in approved(folder):
        raise Refused(
            f"experiment {experiment.name!r} waits for this site's approval: "
            "`pgfed federation approve` at the site"
        )


def check_asked(
    head: Head, client: int, experiment: Experiment, methods: Mapping[str, Algorithm]
) -> tuple[str, int, int]:
    """Method, seed and round of a request; only what this site's own experiment holds."""
    method, seed = field(head, "method", str), field(head, "seed", int)
    round = field(head, "round", int)
    if field(head, "client", int) != client:
        raise Refused(f"a message for client {head['client']}, this is client {client}")
    if method not in methods or seed not in experiment.seeds:
        raise Refused(f"{method!r:.40}, seed {seed} is not in this site's experiment")
    once_more = head["stage"] == "refresh" and methods[method].personal.refresh
    if not 0 <= round <= experiment.rounds + once_more:
        raise Refused(f"round {round}; the experiment has {experiment.rounds}")
    return method, seed, round


def check_questions(questions: set[str], round: int, site: SiteFile) -> None:
    """To ask the same again reveals nothing more. Different questions in one round do."""
    if len(questions) > site.answers_per_round:
        raise Refused(
            f"round {round}: {len(questions) - 1} different questions were answered; this site "
            "allows no more (answers_per_round in its site.toml)"
        )


def asks(folder: SiteFolder, experiment: Experiment, methods: Mapping[str, Algorithm]) -> list[str]:
    """What an experiment would have this site do and give, for the one who decides."""
    site = folder.file
    task = make_model(site, experiment, experiment.seeds[0], site.without_data())
    objective = task.objective
    compression = make_compression(experiment.engine.compression, experiment.engine.top_k)
    lines = [
        f"experiment  {experiment.name} of the federation {site.federation}, at {site.server}",
        f"digest      {digest(site, experiment)}",
        f"task        {experiment.task.kind}, judged by {', '.join(objective.names)}",
        f"model       {experiment.model.name}, {task.layout.n:,} values",
        f"rounds      {experiment.rounds}, for each of {len(experiment.seeds)} seeds",
    ]
    for name, method in methods.items():
        if name == BASELINE:
            lines.append(f"{name}: trained beside; no model leaves")
            continue
        form = Form(task.layout, method.shared, task.outputs, task.width)
        each, once = form.size(method.leaves, {}), leaving_once(type(method))
        if compression is not None:
            each = compression.size(form, method.leaves, {})
        train = method.train
        lines.append(
            f"{name}: {train.epochs} epochs a round in batches of {train.batch_size}; "
            f"{'at most ' if compression else ''}{size(each)} leave in each round:"
        )
        lines += [f"    {line}" for line in leaving(type(method))]
        for key, kind in personal.leaves(method).items():
            lines.append(f"    and once, in its first round: {key}: {LEAVES[kind]}")
        if once:
            lines += ["    and once, after the last round:", *(f"    {line}" for line in once)]
    if site.private.on:
        lines += _privately(site.private)
    else:
        lines.append(
            "besides: how many samples there are; loss and metrics on the test samples; seconds; "
            "versions"
        )
    if site.share_model:
        covered = ", and privacy covers it" if site.private.on else ""
        lines.append(
            f"share_model is on: a copy of this site's model, if the server keeps one{covered}"
        )
    return lines


def _privately(table: SitePrivacy) -> list[str]:
    """What a site with privacy gives of all that, and what of the rest."""
    most = "" if table.run_epsilon is None else f"{table.run_epsilon:g} of "
    scores = {
        "withheld": "no scores",
        "end": "after the last round, noisy and charged, accuracy and loss of models it covers",
    }[table.scores]
    return [
        f"privacy     all of it noisy: a run may spend epsilon {most}{table.epsilon:g}, delta "
        f"{table.delta:g}, as far as it is left (`pgfed privacy ledger`)",
        f"besides: the declared number of {table.unit or 'record'}s; {scores}; versions",
    ]


# -- runs --------------------------------------------------------------------------------------


class Seat:
    """This site's part in one run, from its first greeting on."""

    def __init__(self, folder: SiteFolder, run: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{32}", run):
            raise Refused(f"run: found {run!r:.40}")
        self._folder, self._path = folder, folder.path / "runs" / f"{run}.json"

    def check(self) -> dict[str, Any]:
        """What is on record of it; refuses a run that never greeted this site."""
        try:
            content: dict[str, Any] = json.loads(self._path.read_text())
        except FileNotFoundError:
            raise Refused(f"this site has no seat in run {self._path.stem}") from None
        except ValueError:
            raise Refused(f"{self._path}: damaged; remove it and greet again") from None
        return content

    def take(self, experiment: Experiment, facts: dict[str, str], *, accept: bool) -> str:
        """Take part, with the data and versions of the first time; this seat's salt.

        ``accept``: the server's operator goes on though they have changed.
        """
        if not self._path.is_file():
            self._path.parent.mkdir(exist_ok=True)
            agreed = digest(self._folder.file, experiment)
            self._check_more(agreed)
            when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            known = {"experiment": experiment.name, "began": when, "salt": secrets.token_hex(16)}
            self._write({**known, "digest": agreed, "facts": facts})
        known = self.check()
        if accept:
            self._write({**known, "facts": facts, "accepted": True})
        else:
            self.hold(facts)
        return str(known["salt"])

    def _check_more(self, agreed: str) -> None:
        """A new run may ask everything again: how many there are is this site's to say."""
        most = self._folder.file.max_runs
        if most is None:
            return
        runs = [json.loads(path.read_text()) for path in self._path.parent.glob("*.json")]
        if sum(run.get("digest") == agreed for run in runs) >= most:
            raise Refused(
                f"this site has taken part in {most} runs of this experiment, and allows no more "
                "(max_runs in its site.toml)"
            )

    @property
    def accepted(self) -> bool:
        """Whether the server's operator went on though this site had changed."""
        return bool(self.check().get("accepted"))

    def hold(self, facts: dict[str, str]) -> None:
        """Refuse to go on with other data or versions than those of the first time."""
        before = self.check()["facts"]
        changed = [  # a hash of the data would tell who guesses that he guessed right
            "data was other than now"
            if key == "data"
            else f"{key} was {before.get(key, '')[:24]}, is {value[:24]}"
            for key, value in facts.items()
            if before.get(key) != value
        ]
        if changed:
            raise Refused(
                f"this site has changed since the run began: {'; '.join(changed)}; put that back, "
                "or have the server go on with --accept-changes"
            )

    def models(self) -> Path:
        """The folder of this run's models: by the experiment's name, which runs may share."""
        known = self.check()
        if "models" not in known:
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", known["experiment"]).strip("-._") or "run"
            number = 1
            while True:
                place = self._folder.models / (name if number == 1 else f"{name}-{number}")
                try:
                    place.mkdir(parents=True)
                    break
                except FileExistsError:
                    number += 1
            known["models"] = place.name
            self._write(known)
        found: Path = self._folder.models / known["models"]
        return found

    def _write(self, content: dict[str, Any]) -> None:
        write_atomic(self._path, json.dumps(content, indent=2) + "\n")


def facts_of(federation: Federation, *, private: bool = False) -> dict[str, str]:
    """What must stay as it is while a run goes on. Under privacy the data may grow: that it did
    would tell of a record."""
    return {
        "data": "not told" if private else federation.fingerprint,
        "pgfed": version("pgfed"),
        "torch": torch.__version__,
        "flower": version("flwr"),
    }


def salted(salt: str, facts: dict[str, str]) -> dict[str, str]:
    """For the server, which can tell that the data is the same, and not which data it is."""
    data = hashlib.sha256(f"{salt} {facts['data']}".encode()).hexdigest()
    return {**facts, "data": data}
