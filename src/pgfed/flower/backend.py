"""The engine of a real federation: clients' work is done at the sites.

States stay there. What the server keeps in a state's place is the number of the round it is from;
every request names it, and the site starts from that state.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid
from torch import Tensor

from pgfed.core import Algorithm, ClientInfo, Message, State
from pgfed.engine.backend import Backend, Payload
from pgfed.engine.client import ClientSide
from pgfed.flower import records
from pgfed.flower.records import BadRecord, Head, pack, unpack
from pgfed.flower.seats import MESSAGE, Seats
from pgfed.models import Factory

POLL = 0.25  # seconds between two looks for replies
ATTEMPTS = 10  # how often a round that lacks replies is asked for

_PART = {"train": "update", "score": "score", "share": "share", "personal": "personal"}


class QuorumError(Exception):
    """Too few sites answered, again and again."""


@dataclass
class SiteFacts:
    """What a round was like with one site."""

    seconds: float = 0.0  # from asking for the update to having it
    work_seconds: float = 0.0  # of that, training
    bytes_down: int = 0
    bytes_up: int = 0
    more: dict[str, Any] = field(default_factory=dict)


class Flower(Backend):
    """Asks sites through Flower's grid, and waits for them no longer than a round may take."""

    def __init__(
        self,
        grid: Grid,
        seats: Seats,
        model: str | Factory,
        *,
        head: str | None,
        run: str,
        methods: dict[str, Algorithm],
        carrier: str | None,
        round_timeout: float,
        min_replies: int,
        copy: bool,
        watch: Callable[[str, int, str], None],
    ) -> None:
        """``carrier``: the method that `local` is trained alongside of; ``watch``: told (stage,
        client, what happened)."""
        super().__init__(seats.federation, model, head=head)
        self.missed: dict[str, dict[int, str]] = {}  # stage -> clients that failed in it, and why
        self.facts: dict[int, SiteFacts] = {}  # of this round
        self._grid, self._seats, self._run = grid, seats, run
        self._methods, self._carrier = methods, carrier
        self._timeout, self._min_replies, self._copy = round_timeout, min_replies, copy
        self._watch = watch

    def begin(self, side: ClientSide) -> None:
        self._side = side
        self._method = next(k for k, m in self._methods.items() if m is side.algorithm)

    def map(
        self, stage: str, round: int, clients: Sequence[int], common: Message, payload: Payload
    ) -> Iterator[tuple[int, list[State]]]:
        if stage == "train":
            self.facts = {}
        missing = list(clients)
        enough = min(self._min_replies, len(missing)) if stage == "train" else 0
        for _ in range(ATTEMPTS):
            self.missed[stage] = {}
            for client, result in self._exchange(stage, round, list(missing), common, payload):
                missing.remove(client)
                yield client, result
            if len(clients) - len(missing) >= enough:
                return
            self._watch("wait", -1, f"{len(clients) - len(missing)} replies, {enough} are needed")
            self._seats.wait(missing, self._timeout)
        raise QuorumError(
            f"round {round}: {len(clients) - len(missing)} of {len(clients)} sites replied, "
            f"--min-replies is {enough}; when they are back, go on with --resume"
        )

    def _exchange(
        self, stage: str, round: int, clients: list[int], common: Message, payload: Payload
    ) -> Iterator[tuple[int, list[State]]]:
        """Ask these sites once; yield what comes back in time."""
        self._seats.look()
        asked: dict[str, tuple[int, Head, float]] = {}
        for client in clients:
            node = self._seats.node(client)
            if node is None:
                self._miss(stage, client, "not connected")
                continue
            state, own = payload(client)
            head = self._head(stage, round, client, state)
            content = pack(head, message={**common, **own})
            if stage == "train":
                self.facts[client] = SiteFacts(bytes_down=records.size(content))
            message = FlowerMessage(
                content, dst_node_id=node, message_type=MESSAGE, ttl=self._timeout
            )
            (name,) = self._grid.push_messages([message])
            if name:
                asked[name] = (client, head, time.monotonic())
                self._watch(stage, client, "asked")
            else:
                self._miss(stage, client, "the message could not be sent")
        end = time.monotonic() + self._timeout
        while asked and time.monotonic() < end:
            replies = list(self._grid.pull_messages(list(asked)))
            for reply in replies:
                # A reply that comes twice is not in `asked` any more.
                name = reply.metadata.reply_to_message_id
                client, head, sent = asked.pop(name, (-1, {}, 0.0))
                if client < 0:
                    continue
                try:
                    result = self._read(stage, client, head, reply, sent)
                except BadRecord as error:
                    self._miss(stage, client, str(error))
                    continue
                self._watch(stage, client, "answered")
                if result:
                    yield client, result
            if not replies:
                time.sleep(POLL)
            self._seats.look()
        for client, _, _ in asked.values():
            self._miss(stage, client, f"no reply within {self._timeout:g} s")

    def _head(self, stage: str, round: int, client: int, state: State | None) -> Head:
        return {
            "stage": stage,
            "run": self._run,
            "method": self._method,
            "seed": self._side.seed,
            "round": round,
            "client": client,
            "base": 0 if state is None else int(state["round"]),
            "alone": self._method == self._carrier,
            "copy": self._copy,
            "ticket": secrets.token_hex(16),  # nobody else can know it: replies cannot be forged
        }

    def _miss(self, stage: str, client: int, reason: str) -> None:
        self.missed[stage][client] = reason
        self._watch(stage, client, reason)

    # -- nothing a site sends is used before it is checked --------------------------------------

    def _read(
        self, stage: str, client: int, asked: Head, reply: FlowerMessage, sent: float
    ) -> list[State]:
        if reply.has_error():
            raise BadRecord(_meaning(reply.error.code, reply.error.reason))
        head, parts = unpack(reply.content)
        if "error" in head:
            raise BadRecord(str(head["error"])[:500])
        for key in ("stage", "ticket", "round"):
            if head.get(key) != asked[key]:
                raise BadRecord(f"{key}: found {head.get(key)!r:.40}, asked for {asked[key]!r}")
        if stage == "personal" and _PART[stage] not in parts:
            return []  # the model stays at the site
        if _PART[stage] not in parts:
            raise BadRecord(f"holds no {_PART[stage]}")
        result = parts[_PART[stage]]
        facts = self.facts.setdefault(client, SiteFacts())
        if stage == "train":
            facts.seconds = time.monotonic() - sent
            facts.work_seconds = _seconds(head, "seconds")
            facts.bytes_up = records.size(reply.content)
            if asked["alone"]:
                facts.more["alone_seconds"] = _seconds(head, "alone_seconds")
            if head.get("afresh") is True:
                facts.more["afresh"] = True
            echo = {"round": head["round"], "seconds": facts.work_seconds}
            return [{"round": asked["round"]}, result, echo]
        if stage == "score":
            check_score(result)
            if asked["alone"]:
                facts.more["alone"] = check_score(parts.get("alone", {}))
        elif stage == "share":
            self._check_share(client, result)
        elif set(result) != {"w"} or _bad_tensor(result["w"], (self._side.info.layout.n,)):
            raise BadRecord("not a model")
        return [result]

    def _check_share(self, client: int, share: State) -> None:
        """As the same method would share it from its initial state."""
        info = ClientInfo(client, int(self.federation.n_train[client]), self._side.info)
        algorithm = self._side.algorithm
        pattern = algorithm.share(algorithm.init_client(self._side.w0, info), info)
        if set(share) != set(pattern):
            raise BadRecord(f"share: keys {sorted(share)}, expected {sorted(pattern)}")
        for key, like in pattern.items():
            value = share[key]
            if isinstance(like, Tensor):
                if _bad_tensor(value, tuple(like.shape)):
                    raise BadRecord(f"share: {key} is not a finite tensor of {tuple(like.shape)}")
            elif type(value) is not type(like) or not 0 <= value <= max(like, info.n):
                raise BadRecord(f"share: {key} is {value!r}")


class Replay(Backend):
    """`local`, which the sites trained alongside another method: its rounds from what they told.

    No message is sent; the rounds are counted as if each had been asked for by itself.
    """

    def __init__(self, of: Flower, history: list[dict[str, Any]]) -> None:
        super().__init__(of.federation, of.model, head=of.head)
        self._rounds = {record["round"]: record for record in history}

    def begin(self, side: ClientSide) -> None:
        pass

    def map(
        self, stage: str, round: int, clients: Sequence[int], common: Message, payload: Payload
    ) -> Iterator[tuple[int, list[State]]]:
        record = self._rounds[round]
        dropped = {d["client"] for d in record["dropped"]}
        for client in clients:
            facts = record["sites"].get(str(client), {})
            if stage == "score" and "alone" in facts:
                yield client, [facts["alone"]]
            elif stage == "train" and client not in dropped and "alone_seconds" in facts:
                yield client, [{}, {}, {"round": round, "seconds": facts["alone_seconds"]}]


def check_score(score: State) -> State:
    """Numbers that a count of correct predictions and a sum of losses can be."""
    for part in ("test", "validation"):
        n, correct = score.get(f"{part}_n"), score.get(f"{part}_correct")
        loss = score.get(f"{part}_loss")
        if type(n) is not int or type(correct) is not int or not 0 <= correct <= n <= 10**12:
            raise BadRecord(f"score: {correct!r} of {n!r} {part} samples")
        if type(loss) is not float or not abs(loss) < float("inf"):
            raise BadRecord(f"score: {part} loss {loss!r}")
    return score


def _seconds(head: Head, key: str) -> float:
    value: float = records.field(head, key, float)
    if not 0 <= value < float("inf"):
        raise BadRecord(f"{key}: {value}")
    return value


def _bad_tensor(value: object, shape: tuple[int, ...]) -> bool:
    return not (
        isinstance(value, Tensor)
        and value.dtype == torch.float32
        and tuple(value.shape) == shape
        and bool(torch.isfinite(value).all())
    )


def _meaning(code: int, reason: str | None) -> str:
    known = {5: "the site went away", 8: "the site's worker process died"}
    return known.get(code, f"{reason or 'unknown'} (Flower's error {code})"[:300])
