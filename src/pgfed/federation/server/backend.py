"""The engine of a real federation: clients' work is done at the sites.

States stay there. What the server keeps in a state's place is the number of the round it is from;
every request names it, and the site starts from that state.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Message as FlowerMessage

from pgfed.engine import personal
from pgfed.engine.backends.base import Backend, Payload
from pgfed.engine.client import ClientSide
from pgfed.engine.exchange.replies import score_refusal
from pgfed.federation.flower import records
from pgfed.federation.flower.records import (
    MESSAGE,
    BadRecord,
    Grid,
    Head,
    pack,
    pull,
    unpack,
)
from pgfed.federation.server.seats import Seats
from pgfed.federation.server.status import Status
from pgfed.methods.contract import Algorithm
from pgfed.methods.registry import BASELINE
from pgfed.methods.values import Message, State
from pgfed.model.networks import Factory
from pgfed.model.objectives import Objective
from pgfed.results.runs import TOLD

POLL = 0.05  # seconds between two looks for replies
LONGER = 60.0  # seconds that Flower keeps a message beyond its time, which is ours to end
ATTEMPTS = 10  # how often a round that lacks replies is asked for
PAUSES = (0.5, 60.0)  # seconds before it is asked for again: at first, and at most

# What a site's answer holds, and what people are told meanwhile.
_PART = {
    "train": "update",
    "refresh": "refresh",
    "score": "score",
    "share": "share",
    "personal": "personal",
}
_DOING = {
    "train": "training",
    "refresh": "training once more",
    "score": "scoring",
    "share": "sharing",
    "personal": "writing its model",
}


Asked = tuple[int, Head, float, int]  # client, head, when, bytes that the answer may have


class QuorumError(Exception):
    """Too few sites answered, again and again."""


@dataclass
class SiteFacts:
    """What a round was like with one site."""

    seconds: float = 0.0  # from asking for the update to having it
    work_seconds: float = 0.0  # of that, training
    bytes_down: int = 0
    bytes_up: int = 0
    counted: bool = False  # its update was used
    more: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """For the round's line of history.jsonl."""
        facts = {k: v for k, v in vars(self).items() if k != "more"}
        return {**(facts if self.bytes_down or self.seconds else {}), **self.more}


class Flower(Backend):
    """Asks sites through Flower's grid, and waits for them no longer than a round may take.

    ``settled``: returns when what the server knows is on disk.
    """

    def __init__(
        self,
        grid: Grid,
        seats: Seats,
        model: str | Factory,
        *,
        head: str | None,
        objective: Objective,
        run: str,
        methods: dict[str, Algorithm],
        round_timeout: float,
        min_replies: int,
        copy: bool,
        status: Status,
        settled: Callable[[], None],
    ) -> None:
        super().__init__(seats.federation, model, head=head, objective=objective)
        others = [name for name in methods if name != BASELINE]
        # The one that `local` is trained alongside of, in the same rounds.
        in_rounds = (name for name in others if methods[name].course == "rounds")
        along = BASELINE in methods and not methods[BASELINE].personal.refresh
        self.carrier = next(in_rounds, None) if along else None
        beside = BASELINE not in methods or self.carrier is not None
        self.asks = others if beside else [BASELINE, *others]  # that messages are sent for
        self.missed: dict[str, dict[int, str]] = {}  # stage -> clients that failed in it, and why
        self.facts: dict[int, SiteFacts] = {}  # of this round
        self.metrics: dict[int, dict[str, float]] = {}  # of the models written, client by client
        self._grid, self._seats, self._run, self._methods = grid, seats, run, methods
        self._timeout, self._min_replies, self._copy = round_timeout, min_replies, copy
        self._status, self._settled = status, settled

    def begin(self, side: ClientSide) -> None:
        self._side, self.metrics = side, {}
        self._method = next(k for k, m in self._methods.items() if m is side.algorithm)

    def map(
        self, stage: str, round: int, clients: Sequence[int], common: Message, payload: Payload
    ) -> Iterator[tuple[int, list[State]]]:
        if stage == "train":
            self.facts, self.missed = {}, {}
            self._settled()
        missing = list(clients)
        enough = min(self._min_replies, len(missing)) if stage == "train" else 0
        for attempt in range(ATTEMPTS):
            if attempt:
                self._seats.wait(missing, self._timeout)
                # What refuses at once, as where a disk is full, gets time to be mended.
                self._seats.rest(min(PAUSES[0] * 2 ** (attempt - 1), PAUSES[1]))
            self.missed[stage] = {}
            for client, result in self._exchange(stage, round, list(missing), common, payload):
                missing.remove(client)
                yield client, result
            got = len(clients) - len(missing)
            if got >= enough:
                return
            reasons = self.missed[stage]
            named = ", ".join(
                f"{self._status.name(i)} ({reasons.get(i, 'no reply')})" for i in missing
            )
            self._status.tell(
                f"round {round}: {got} replies, {enough} are needed; asking again: {named}"
            )
        raise QuorumError(
            f"round {round}: {got} of {len(clients)} sites replied, --min-replies is {enough}; "
            f"missing: {named}; when they are back, go on with --resume"
        )

    def commit(self, round: int, clients: Sequence[int]) -> None:
        for client in clients:
            self.facts[client].counted = True

    def _exchange(
        self, stage: str, round: int, clients: list[int], common: Message, payload: Payload
    ) -> Iterator[tuple[int, list[State]]]:
        """Ask these sites once; yield what comes back in time."""
        asked = self._ask(stage, round, clients, common, payload)
        end = time.monotonic() + self._timeout
        try:
            while asked and time.monotonic() < end:
                replies = list(pull(self._grid, list(asked)))
                for name, reply in replies:
                    # A reply that comes twice is not in `asked` any more.
                    if name not in asked:
                        continue
                    client, head, sent, most = asked.pop(name)
                    try:
                        if isinstance(reply, BadRecord):
                            raise reply
                        result = self._read(stage, client, head, reply, sent, most)
                    except BadRecord as error:
                        self._miss(stage, client, str(error))
                        continue
                    self._status.doing(client, "")
                    if result:
                        yield client, result
                if not replies:
                    time.sleep(POLL)
                self._seats.look()
            for client, *_ in asked.values():
                self._miss(stage, client, self._late)
        finally:
            self._grid.forget(asked)

    def _ask(
        self, stage: str, round: int, clients: list[int], common: Message, payload: Payload
    ) -> dict[str, Asked]:
        """Send each of these sites its question; what was asked, by the message's name."""
        self._seats.look()
        asked: dict[str, Asked] = {}
        for client in clients:
            node = self._seats.node(client)
            if node is None:
                self._miss(stage, client, "not connected")
                continue
            state, own = payload(client)
            head, whole = self._head(stage, round, client, state), {**common, **own}
            content = pack(head, message=whole)
            if stage == "train":
                self.facts[client] = SiteFacts(bytes_down=records.size(content))
            message = FlowerMessage(
                content, dst_node_id=node, message_type=MESSAGE, ttl=self._timeout + LONGER
            )
            most = self._most(stage, whole)
            name = self._grid.push_message(message, most)
            if name:
                asked[name] = (client, head, time.monotonic(), most)
                self._status.doing(client, _DOING[stage])
            else:
                self._miss(stage, client, "the message could not be sent")
        return asked

    def _most(self, stage: str, message: Message) -> int:
        """Bytes of the arrays in the answer to this message."""
        task, algorithm = self._side.task, self._side.algorithm
        if stage == "train":
            return self._side.size(personal.declared(message, algorithm), message)
        if stage == "share":
            return self._side.form.size(algorithm.shares_of(task.layout), message)
        return 4 * task.layout.n if stage == "personal" and self._copy else 0

    def _head(self, stage: str, round: int, client: int, state: State | None) -> Head:
        return {
            "stage": stage,
            "run": self._run,
            "method": self._method,
            "seed": self._side.seed,
            "round": round,
            "client": client,
            "base": 0 if state is None else int(state["round"]),
            "alone": self._method == self.carrier,
            "copy": self._copy,
            "ticket": secrets.token_hex(16),  # nobody else can know it: replies cannot be forged
        }

    @property
    def _late(self) -> str:
        return f"no reply within {self._timeout:g} s"

    def _meaning(self, code: int, reason: str | None) -> str:
        """Flower's errors in our words; 3 and 4 are messages whose time was over."""
        known = {3: self._late, 4: self._late, 5: "the site went away"}
        return known.get(code, f"{reason or 'unknown'} (Flower's error {code})"[:300])

    def _miss(self, stage: str, client: int, reason: str) -> None:
        self.missed[stage][client] = reason
        self._status.doing(client, reason)

    def _read(
        self, stage: str, client: int, asked: Head, reply: FlowerMessage, sent: float, most: int
    ) -> list[State]:
        """A site's answer to this question, in form; `Run` checks what it means."""
        if reply.has_error():
            raise BadRecord(self._meaning(reply.error.code, reply.error.reason))
        if records.size(reply.content) > most:
            raise BadRecord(f"its arrays take more than the {most} bytes expected")
        head, parts = unpack(reply.content)
        if "error" in head:
            raise BadRecord(str(head["error"])[:500])
        for key in ("stage", "ticket", "round"):
            if head.get(key) != asked[key]:
                raise BadRecord(f"{key}: found {head.get(key)!r:.40}, asked for {asked[key]!r}")
        if stage == "personal":
            self.metrics[client] = _metrics(parts.get("metrics", {}), self._side.task.objective)
        if _PART[stage] not in parts:
            if stage == "personal":
                return []  # the model stays at the site
            raise BadRecord(f"holds no {_PART[stage]}")
        result = parts[_PART[stage]]
        facts = self.facts.setdefault(client, SiteFacts())
        if stage == "train":
            facts.seconds = time.monotonic() - sent
            facts.work_seconds = _seconds(head, "seconds")
            facts.bytes_up = records.size(reply.content)
            self._seats.told(client, head)
            if asked["alone"]:
                facts.more["alone_seconds"] = _seconds(head, "alone_seconds")
            if head.get("afresh") is True:
                facts.more["afresh"] = True
            echo = {"seconds": facts.work_seconds, "round": head["round"]}
            return [{"round": asked["round"]}, result, echo]
        if stage == "refresh":
            return [{"round": asked["round"]}, {}, {"seconds": 0.0, "round": head["round"]}]
        objective = self._side.task.objective
        if stage == "score" and score_refusal(result, objective) is None:
            if "test_score" in result:
                facts.more["score"] = result["test_score"]
            if asked["alone"] and score_refusal(parts.get("alone", {}), objective) is None:
                facts.more["alone"] = _as_text(parts["alone"])
        if stage == "personal" and not _is_model(result, self._side.info.layout.n):
            raise BadRecord("not a model")
        return [result]


class Replay(Backend):
    """`local`, which the sites trained alongside another method: its rounds from what they told.

    No message is sent; the rounds are counted as if each had been asked for by itself.
    """

    def __init__(self, of: Flower, history: list[dict[str, Any]]) -> None:
        super().__init__(of.federation, of.model, head=of.head, objective=of.objective)
        self._sites = {record["round"]: record["sites"] for record in history}

    def begin(self, side: ClientSide) -> None:
        pass

    def map(
        self, stage: str, round: int, clients: Sequence[int], common: Message, payload: Payload
    ) -> Iterator[tuple[int, list[State]]]:
        for client in clients:
            facts = self._sites[round].get(client, {})
            if stage == "score" and "alone" in facts:
                yield client, [_from_text(facts["alone"])]
            elif stage == "train" and facts.get("counted"):
                yield client, [{}, {}, {"seconds": facts["alone_seconds"], "round": round}]


def _as_text(scores: State) -> State:
    """A loss may be infinite, which JSON cannot say."""
    return {k: v if math.isfinite(v) else str(v) for k, v in scores.items()}


def _from_text(scores: State) -> State:
    return {k: float(v) if isinstance(v, str) else v for k, v in scores.items()}


def _seconds(head: Head, key: str) -> float:
    value: float = records.field(head, key, float)
    if not 0 <= value < float("inf"):
        raise BadRecord(f"{key}: {value}")
    return value


def _metrics(numbers: State, objective: Objective) -> dict[str, float]:
    """What a site says its model is worth and what it gained; what is undefined is missing."""
    for name, value in numbers.items():
        known = name in objective.names or name in TOLD
        if not known or type(value) is not float or not math.isfinite(value):
            raise BadRecord(f"metrics: found {name!r:.40} = {value!r:.40}")
    return dict(numbers)


def _is_model(result: State, n: int) -> bool:
    w = result.get("w")
    return isinstance(w, torch.Tensor) and w.dtype == torch.float32 and tuple(w.shape) == (n,)
