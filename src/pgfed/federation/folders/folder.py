"""The folder of a federation, and the folder that each site is given.

    DIR/federation.toml          what all agree on: seats, address, classes, shape of the inputs
    DIR/experiment.toml          what is trained
    DIR/server/                  certificates, the sites' public keys, the server's socket
    DIR/sites/site-00/           handed to the site: its key, site.toml, experiment.toml, ca.crt,
                                 and schema.toml if the data are tables
    DIR/run/                     the run folder, as in simulation

A site does what its own experiment.toml says, and nothing else: before each run the server shows
the digest of its own agreement, and a site that holds another one does not take part.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from pydantic import Field

from pgfed.config import experiment as experiments
from pgfed.config.privacy import SitePrivacy
from pgfed.config.schema import Table, check
from pgfed.config.tables import DEFAULT_COHORT, Experiment, check_folder
from pgfed.engine.exchange.replies import MAX_SAMPLES
from pgfed.errors import UserError
from pgfed.modules import NONE, Allowed, allowed

if TYPE_CHECKING:
    from pgfed.data.federation import Federation
    from pgfed.methods.contract import Algorithm

RUN_FILE = "federation.json"  # in a run folder: its id, which the sites' states are stamped with
SCHEMA = "schema.toml"  # of tables, in a site's folder
DATASET = "federation"  # data.dataset of an experiment whose data lies with the sites
LOOPBACK_NAMES = ("localhost",)

T = TypeVar("T", bound=Table)
Request = Literal["train", "refresh", "score", "share", "personal"]  # what a site may be asked for


class Agreement(Table):
    """What server and sites agree on beside the experiment."""

    federation: str  # its name
    server: str  # host:port of the server, as the sites reach it
    seats: int = Field(ge=1, le=10_000)  # N, the sites that may take part
    sites: list[str] = Field(default_factory=list)  # what they are called; empty: site-00, ...
    input_shape: list[int] = Field(min_length=1, max_length=4)
    input: Literal["uint8", "float32", "int64"]  # uint8 pixels are scaled to [-1, 1]
    classes: list[str] = Field(min_length=1)  # a name for each output of the model
    targets: Literal["classes", "labels", "values", "masks"] = "classes"
    insecure: bool = False  # without TLS; on one machine only

    @property
    def host(self) -> str:
        return split_address(self.server)[0]

    @property
    def port(self) -> int:
        return split_address(self.server)[1]

    @property
    def hosts(self) -> list[str]:
        """The names and addresses that the server's certificate is for."""
        return list(dict.fromkeys([self.host, "localhost", "127.0.0.1", "::1"]))

    @property
    def names(self) -> list[str]:
        """What the sites are called, seat by seat."""
        digits = max(2, len(str(self.seats - 1)))
        return self.sites or [f"site-{i:0{digits}}" for i in range(self.seats)]

    def without_data(self, *, by_name: bool = False) -> Federation:
        """What the server has of the federation: the sizes, once the sites have told them."""
        import numpy as np
        import torch

        from pgfed.data.federation import Federation, name_keys

        names = np.array(self.names, dtype=np.str_)
        return Federation(
            name=self.federation,
            x=torch.empty(0, dtype=getattr(torch, self.input)),
            y=torch.empty(0, dtype=torch.int64),
            bounds=np.zeros((self.seats, 4), dtype=np.int64),
            input_shape=tuple(self.input_shape),
            class_names=tuple(self.classes),
            client_labels=names,
            targets=self.targets,
            keys=name_keys(names) if by_name else None,
        )


class FederationFile(Agreement):
    """A server's federation.toml."""

    max_samples: int | dict[str, int] = MAX_SAMPLES  # that a site may claim; or by its name

    def most_samples(self, client: int) -> int:
        if isinstance(self.max_samples, int):
            return self.max_samples
        return self.max_samples.get(self.names[client], MAX_SAMPLES)


class SiteFile(Agreement):
    """A site's site.toml."""

    client: int = Field(ge=0)  # this site's seat
    data: str = ""  # KIND:PATH
    share_model: bool = False  # may the server keep a copy of this site's personalized model?
    allow_modules: list[str] = Field(default_factory=list)  # that the experiment may import here
    auto_approve: bool = False  # take part in whatever experiment.toml asks, without `approve`
    max_rounds: int | None = Field(default=None, ge=1)  # that an experiment may have
    max_runs: int | None = Field(default=None, ge=1)  # of one experiment
    answers_per_round: int = Field(default=5, ge=1)  # different questions of each kind
    min_batch: int = Field(default=1, ge=1)  # samples that a step of training is computed from
    max_step: float | None = Field(default=None, gt=0)  # length of an update, or of a gradient
    requests: list[Request] = Field(default_factory=lambda: list(get_args(Request)))
    privacy: dict[str, Any] = Field(default_factory=dict)  # as `SitePrivacy` has it

    @property
    def private(self) -> SitePrivacy:
        """The site's own [privacy] table."""
        return check(SitePrivacy, self.privacy, "privacy")


class FederationFolder:
    """Where things are in the folder of a federation."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.agreement = read_table(self.path / "federation.toml", FederationFile)
        check_agreement(self.agreement)
        self.server = self.path / "server"
        self.socket = self.server / "control.sock"
        self.run = self.path / "run"
        self.experiment_file = self.path / "experiment.toml"

    def key(self, client: int) -> Path:
        """The public key of the site at this seat."""
        return self.server / "keys" / f"{self.agreement.names[client]}.pub"

    def seat(self, name: str) -> int:
        """The seat of the site with this name."""
        names = self.agreement.names
        if name not in names:
            allowed = ", ".join(names) if self.agreement.sites else f"{names[0]} to {names[-1]}"
            raise UserError(f"site: found {name!r}; allowed: {allowed}")
        return names.index(name)

    def check_run(self, *, resume: bool) -> None:
        """A new run needs an empty place, and --resume one to go on with."""
        begun = (self.run / RUN_FILE).is_file()
        if begun and not resume:
            raise UserError(
                f"{self.run} holds a run; go on with --resume, or move that folder away"
            )
        if resume and not begun:
            raise UserError(f"{self.run} holds no run to go on with; leave out --resume")


class SiteFolder:
    """Where things are in a site's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.file = read_table(self.path / "site.toml", SiteFile)
        check_agreement(self.file)
        if self.file.client >= self.file.seats:
            raise UserError(
                f"{self.path / 'site.toml'}: client: found {self.file.client}; "
                f"allowed: 0 to {self.file.seats - 1}"
            )
        self.key = self.path / "site.key"
        self.authority = self.path / "ca.crt"
        self.states = self.path / "state"
        self.models = self.path / "models"
        self.experiment_file = self.path / "experiment.toml"

    @property
    def allowed(self) -> Allowed:
        """The modules that the experiment, which the server handed out, may name."""
        file = self.path / "site.toml"
        return allowed(
            self.file.allow_modules, lambda module: f'allow_modules = ["{module}"] in {file}'
        )


def load_experiment(
    path: Path, allowed: Allowed | None = NONE
) -> tuple[Experiment, dict[str, Algorithm]]:
    """The experiment, complete, and its methods by the name of their folder.

    ``allowed``: the modules that it may import; None: it is one's own, and may import any.
    """
    if not path.is_file():
        raise UserError(f"{path}: missing; `pgfed federation init` writes it")
    loaded = experiments.load(path)
    if allowed is not None:
        experiments.check_modules(loaded, path, allowed)
    methods, experiment = experiments.make_methods(loaded)
    check_federated(experiment)
    for name, method in methods.items():
        if method.course == "pooled":
            raise UserError(f"methods: {name!r} needs all data in one place; only simulations do")
    if experiment.cohort is None:
        experiment = replace(experiment, cohort=DEFAULT_COHORT)
    return experiment, methods


def check_federated(experiment: Experiment) -> None:
    """What only a simulation can do."""
    if experiment.output.keep != "last":
        raise UserError("output.keep: found 'best'; a federation keeps the last round's models")
    if experiment.data.new_clients:
        raise UserError("data.new_clients: found a share above 0; a federation's sites all train")
    if experiment.privacy.on:
        raise UserError("privacy: each site's own, in its site.toml; leave it out here")
    if experiment.attack.kind != "none":
        raise UserError(f"attack.kind: found {experiment.attack.kind!r}; only simulations have it")
    if experiment.output.callbacks:
        raise UserError("output.callbacks: found some; only simulations have them")


def digest(agreement: Agreement, experiment: Experiment) -> str:
    """What must be the same at the server and at a site. Where and how fast it runs may differ."""
    agreed = agreement.model_dump(include=set(Agreement.model_fields) - {"server", "insecure"})
    document = experiment.values()
    del document["output"]
    kept = ("aggregation", "attackers", "max_update_norm", "compression", "top_k")
    engine = {k: document["engine"][k] for k in kept}
    del document["engine"]
    text = json.dumps([agreed, document, engine], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_table(path: Path, kind: type[T]) -> T:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path}: missing; is {path.parent} a folder made by `pgfed federation init`?"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    try:
        return check(kind, content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


# -- addresses ---------------------------------------------------------------------------------


def split_address(address: str) -> tuple[str, int]:
    """host and port of HOST:PORT."""
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not re.fullmatch(r"[A-Za-z0-9._:-]+", host) or not port.isdecimal():
        raise UserError(f"server address: found {address!r}; allowed: HOST:PORT")
    if not 1 <= int(port) <= 65535:
        raise UserError(f"server address: found port {port}; allowed: 1 to 65535")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether the address cannot be reached from another machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK_NAMES


def check_agreement(agreement: Agreement) -> None:
    """Each site has a name of its own, and without TLS nobody listens from elsewhere.

    A site is handed all of it by the server, and puts names into files for its machine.
    """
    check_folder("federation", agreement.federation)
    split_address(agreement.server)
    for name in agreement.sites:
        check_folder("sites", name)
    if agreement.sites and len({name.lower() for name in agreement.sites}) != agreement.seats:
        raise UserError(
            f"sites: found {', '.join(agreement.sites)}; allowed: {agreement.seats} names (seats), "
            "each once"
        )
    if agreement.insecure and not is_loopback(agreement.host):
        raise UserError(
            f"insecure: the server's address {agreement.server} can be reached from other "
            "machines; without TLS only 127.0.0.1, ::1 and localhost are allowed"
        )
