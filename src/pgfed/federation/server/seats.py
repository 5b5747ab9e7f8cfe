"""Who sits where: the server's view of the sites.

A seat is a client id. It belongs to the holder of the private key whose public half lies in the
federation's folder, and to nobody else: a node gets a seat by signing, for this run and for a nonce
of ours, that it is that client.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Message

from pgfed.data.federation import Federation
from pgfed.engine.exchange.replies import MAX_SAMPLES
from pgfed.errors import one_line
from pgfed.federation.flower.records import (
    MESSAGE,
    BadRecord,
    Grid,
    Head,
    field,
    pack,
    pull,
    unpack,
)
from pgfed.federation.folders.folder import FederationFolder
from pgfed.federation.folders.keys import holds_claim, load_public
from pgfed.federation.server.notes import Pins
from pgfed.federation.server.status import Status

LOOK = 0.5  # seconds between two looks at who is there
AGAIN = 15.0  # seconds until a refused node is asked again
PINNED = ("data", "pgfed", "torch", "flower")  # what a site tells of itself, and keeps
PATIENCE = 600.0  # seconds a node may take to say who it is


class Seats:
    """The seats of a federation and the nodes that hold them."""

    def __init__(
        self,
        grid: Grid,
        folder: FederationFolder,
        federation: Federation,
        run: str,
        digest: str,
        frozen: str,
        status: Status,
        pins: Pins,
    ) -> None:
        self.federation = federation
        self.facts: dict[int, dict[str, Any]] = {}  # what each site said about itself
        self._grid = grid
        self._n = folder.agreement.seats
        keys = {i: folder.key(i) for i in range(self._n)}
        self._keys = {i: load_public(path) for i, path in keys.items() if path.is_file()}
        self._run, self._digest, self._frozen = run, digest, frozen
        self._status, self.pins = status, pins
        self._most = [folder.agreement.most_samples(i) for i in range(folder.agreement.seats)]
        self._node: dict[int, int] = {}  # client -> node
        self._online: set[int] = set()
        self._asked: dict[str, tuple[int, str, float]] = {}  # message -> node, nonce, when
        self._refused: dict[int, float] = {}  # node -> when
        self._why: dict[int, str] = {}  # node -> what was said of that
        self._looked = -LOOK

    def __len__(self) -> int:
        return self._n

    @property
    def taken(self) -> set[int]:
        """The seats that belong to a site: one may have been removed."""
        return set(self._keys)

    def node(self, client: int) -> int | None:
        """The node that holds this seat, if it is there now."""
        node = self._node.get(client)
        return node if node in self._online else None

    def missing(self) -> str:
        """The names of those who are not there, with what is known of why."""
        away = sorted(self.taken - {*self.present()})
        why = {i: self._status.site(i)["doing"] for i in away}
        return ", ".join(self._status.name(i) + (f" ({why[i]})" if why[i] else "") for i in away)

    def present(self) -> list[int]:
        return [i for i in range(len(self)) if self.node(i) is not None]

    def look(self) -> None:
        """See who is there, greet newcomers, and seat those who prove who they are."""
        now = time.monotonic()
        if now - self._looked < LOOK:
            return
        self._looked = now
        self._online = set(self._grid.get_node_ids())
        waiting = {node for node, _, _ in self._asked.values()}
        late = {node for node, when in self._refused.items() if now - when > AGAIN}
        known = set(self._node.values()) | waiting | (set(self._refused) - late)
        for node in sorted(self._online - known):
            self._greet(node, now)
        for name, reply in pull(self._grid, list(self._asked)):
            asked = self._asked.pop(name, None)
            if asked is not None:
                self._hear(asked[0], asked[1], reply)
        for message, (_, _, when) in list(self._asked.items()):
            if now - when > PATIENCE:
                del self._asked[message]
                self._grid.forget([message])
        self._status.places(self.present(), self.federation.n_train.tolist())

    def wait(self, wanted: Iterable[int], seconds: float) -> None:
        """Until all of these sites are there, or the time is over."""
        wanted, end = set(wanted), time.monotonic() + seconds
        self.look()
        while not wanted <= set(self.present()) and time.monotonic() < end:
            time.sleep(LOOK / 4)
            self.look()

    def rest(self, seconds: float) -> None:
        """Let time pass; whoever comes meanwhile is seated."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(LOOK / 4, seconds))
            self.look()

    def _greet(self, node: int, now: float) -> None:
        nonce = secrets.token_hex(16)
        agreed = {"digest": self._digest, "frozen": self._frozen, "accept": self.pins.accept}
        with contextlib.suppress(StopIteration):  # it went away meanwhile
            agreed["ledger"] = self.pins.ledger(self._grid.seat(node))
        head = {"stage": "hello", "run": self._run, "nonce": nonce, **agreed}
        message = Message(pack(head), dst_node_id=node, message_type=MESSAGE, ttl=PATIENCE)
        name = self._grid.push_message(message, 0)  # nothing but numbers is expected
        if name:
            self._asked[name] = (node, nonce, now)

    def _hear(self, node: int, nonce: str, reply: Message | BadRecord) -> None:
        self._refused.pop(node, None)
        try:
            if isinstance(reply, BadRecord):
                raise reply
            if reply.has_error():
                raise BadRecord(f"{reply.error.reason} (code {reply.error.code})")
            head, _ = unpack(reply.content)
            if "error" in head:
                raise BadRecord(str(head["error"])[:500])
            client = self._check(head, node, nonce)
            name = self._status.name(client)
            told = {k: one_line(field(head, k, str)[:80]) for k in PINNED}
            changed = self.pins.hold(client, name, told)
        except BadRecord as error:
            self._refused[node] = time.monotonic()
            client = self._grid.seat(node)
            self._status.doing(client, str(error))
            if self._why.get(node) != str(error):  # it is asked again and again
                self._status.tell(f"{self._status.name(client)} was not seated: {error}")
            self._why[node] = str(error)
            return
        self._node[client] = node
        self._status.doing(client, "")
        if changed:
            self._status.tell(f"{changed}; accepted")
        n = [head[f"n_{part}"] for part in ("train", "validation", "test")]
        self.federation.bounds[client] = np.cumsum([0, *n])
        self.facts[client] = {k: one_line(str(head.get(k))[:80]) for k in (*PINNED, "machine")}
        del self.facts[client]["data"]
        self.told(client, head)
        name = self._status.name(client)
        self._status.tell(f"{name} is here: {n[0]} samples to train on, {n[2]} to test on")

    def told(self, client: int, head: Head) -> None:
        """What a site says of its privacy, when it greets and with each round: for the report."""
        self.pins.saw(client, head.get("ledger"))
        self.facts.setdefault(client, {})["privacy"] = one_line(
            str(head.get("privacy", "none"))[:200]
        )

    def _check(self, head: Head, node: int, nonce: str) -> int:
        client: int = field(head, "client", int)
        signature: bytes = field(head, "signature", bytes)
        if not 0 <= client < len(self):
            raise BadRecord(f"it claims seat {client} of {len(self)}")
        if client not in self._keys:
            raise BadRecord(f"seat {client} was empty when the run began; the next `run` has it")
        if not holds_claim(self._keys[client], signature, client, node, self._run, nonce):
            name = self._status.name(client)
            raise BadRecord(f"it claims to be {name} but does not hold that site's key")
        for part in ("train", "validation", "test"):
            n = field(head, f"n_{part}", int)
            if not 0 <= n <= MAX_SAMPLES:
                raise BadRecord(f"n_{part} is {n}, allowed at most {MAX_SAMPLES}")
        n = sum(head[f"n_{part}"] for part in ("train", "validation", "test"))
        if n > self._most[client]:
            most = self._most[client]
            raise BadRecord(f"it says it has {n} samples; max_samples is {most}")
        if not head["n_train"]:
            raise BadRecord("it has no training data")
        return client
