"""Fewer bytes: how the vectors of messages and updates travel (`engine.compression`).

int8: a whole number between -127 and 127 per entry and one scale per block of 128. An entry is
rounded up or down by lot, so that its mean is the value itself. Both directions.
top-k: the largest entries and their places. Upwards only, and of differences and gradients only: a
client that was away does not hold what a difference would be from, and a model without most of its
entries is none.

Up: a model travels as its difference from the one that the client received under the same key,
where it received one; steps and gradients as they are. What was not said is kept in the client's
state and added to what it says next (error feedback), so that sums over rounds stay true.
Down: what all receive is encoded once per round, what single clients receive for each of them. An
entry of the server's state that is sent to all is from then on what was said, as the clients start
from that; what was left unsaid is kept and added the next time.

Buffers, single numbers, rows, class counts and prototypes travel as they are; so does what is asked
for outside of training: scores, shares, models to take home.

Stich, Cordonnier, Jaggi. Sparsified SGD with memory. NeurIPS 2018. (top-k, error feedback)
Alistarh, Grubic, Li, Tomioka, Vojnovic. QSGD. NeurIPS 2017. (rounding by lot, scales per block)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pgfed.engine.exchange.replies import Form, divided
from pgfed.errors import OneLine
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.values import Kind, Message, State, Update

BLOCK = 128  # entries with a common scale
STEPS = 127  # from zero to the largest of them
UNSAID = "compression."  # before a key of a client's state: what its last updates left unsaid
_MODELS: tuple[Kind, ...] = ("model", "own")
_CODED: tuple[Kind, ...] = (*_MODELS, "step", "gradient")


class Damaged(OneLine):
    """What was received cannot be decoded; says why."""


@dataclass(frozen=True)
class Compression:
    """How vectors travel. ``share``: of the entries that top-k sends."""

    kind: Literal["int8", "top-k"]
    share: float = 0.05

    # -- one vector, or several of one length --------------------------------------------------

    def encoded(self, key: str, values: Tensor, trained: int, lot: np.random.Generator) -> State:
        """What travels in the place of ``values``, of whose last dimension some are trained."""
        vector, rest = values[..., :trained], values[..., trained:]
        parts = self._quantized(vector, lot) if self.kind == "int8" else self._largest(vector)
        if rest.shape[-1]:
            parts["rest"] = rest.clone()
        return {f"{key}.{name}": part for name, part in parts.items()}

    def _quantized(self, vector: Tensor, lot: np.random.Generator) -> State:
        blocks = _blocks(vector)
        scale = blocks.abs().amax(-1) / STEPS
        steps = blocks / torch.where(scale > 0, scale, 1.0)[..., None]
        drawn = torch.from_numpy(lot.random(tuple(vector.shape), dtype=np.float32))
        steps = steps.flatten(-2)[..., : vector.shape[-1]] + drawn.to(vector.device)
        # A model that has diverged has scales that are no numbers, by which it is refused.
        whole = steps.floor_().clamp_(-STEPS, STEPS).nan_to_num_().to(torch.int8)
        return {"int8": whole, "scale": scale}

    def _largest(self, vector: Tensor) -> State:
        places = vector.abs().topk(self.count(len(vector))).indices.sort().values
        return {"index": places.to(torch.int32), "value": vector[places]}

    def count(self, size: int) -> int:
        """How many entries of a vector top-k sends."""
        return min(size, max(1, math.ceil(self.share * size)))

    def decoded(self, key: str, parts: State, trained: int, size: int) -> Tensor:
        """The inverse of `encoded`; takes the parts out of ``parts``."""
        rows: tuple[int, ...] = ()
        if self.kind == "int8":
            whole = _part(parts, f"{key}.int8", torch.int8)
            rows = tuple(whole.shape[:-1])
            _check_shape(f"{key}.int8", whole, (*rows, trained))
            scale = _part(parts, f"{key}.scale", torch.float32)
            _check_shape(f"{key}.scale", scale, (*rows, -(-trained // BLOCK)))
            vector = (_blocks(whole.float()) * scale[..., None]).flatten(-2)[..., :trained]
        else:
            vector = self._placed(key, parts, trained)
        if size > trained:
            rest = _part(parts, f"{key}.rest", torch.float32)
            _check_shape(f"{key}.rest", rest, (*rows, size - trained))
            vector = torch.cat([vector, rest], -1)
        return vector.contiguous()

    def _placed(self, key: str, parts: State, trained: int) -> Tensor:
        places = _part(parts, f"{key}.index", torch.int32).long()
        value = _part(parts, f"{key}.value", torch.float32)
        for name, part in (("index", places), ("value", value)):
            _check_shape(f"{key}.{name}", part, (self.count(trained),))
        rising = bool((places.diff() > 0).all()) if len(places) > 1 else True
        if len(places) and not (rising and places[0] >= 0 and places[-1] < trained):
            raise Damaged(f"{key}.index: not places below {trained} in rising order")
        return value.new_zeros(trained).index_copy_(0, places, value)

    # -- up --------------------------------------------------------------------------------------

    def codes(self, key: str, kind: Kind, message: Message) -> bool:
        """Whether this entry of an update is encoded, in answer to this message."""
        return kind in _CODED and (self.kind == "int8" or kind not in _MODELS or key in message)

    def said(
        self,
        form: Form,
        declared: Mapping[str, Kind],
        message: Message,
        update: Update,
        unsaid: State,
        rng: Rng,
    ) -> tuple[Update, State]:
        """(what travels of an update, what it leaves unsaid). ``unsaid``: by those before."""
        sent, left = dict(update), dict(unsaid)
        for key, kind in declared.items():
            if not self.codes(key, kind, message):
                continue
            values = sent.pop(key)
            trained = form.trained(len(values))
            if kind in _MODELS and key in message:
                values = values - message[key]
            owed = values.clone()
            if UNSAID + key in unsaid:
                owed[:trained] += unsaid[UNSAID + key]
            lot = rng.generator(f"compression {key}")
            parts = self.encoded(key, owed, trained, lot)
            sent |= parts
            heard = self.decoded(key, dict(parts), trained, len(values))
            left[UNSAID + key] = (owed - heard)[:trained]
        return sent, left

    def heard(
        self, form: Form, declared: Mapping[str, Kind], message: Message, sent: Update
    ) -> Update:
        """The update that was said; raises Damaged. ``message``: as its client decoded it."""
        update = dict(sent)
        for key, kind in declared.items():
            if not self.codes(key, kind, message):
                continue
            size = form.shape(kind, message)[0]
            values = self.decoded(key, update, form.trained(size), size)
            if key in update:
                raise Damaged(f"{key}: comes twice")
            twin = message.get(key) if kind in _MODELS else None
            update[key] = values if twin is None else values + twin
        return update

    def size(self, form: Form, declared: Mapping[str, Kind], message: Message) -> int:
        """Bytes of the arrays of a reply to this message, encoded or not."""
        coded = {k: kind for k, kind in declared.items() if self.codes(k, kind, message)}
        total = form.size({k: v for k, v in declared.items() if k not in coded}, message)
        for kind in coded.values():
            size = form.shape(kind, message)[0]
            trained = form.trained(size)
            packed = trained + 4 * -(-trained // BLOCK)
            total += packed if self.kind == "int8" else 8 * self.count(trained)
            total += 4 * (size - trained)
        return total

    # -- down ------------------------------------------------------------------------------------

    def opened(self, sent: Message) -> Message:
        """The message that was sent, as its client takes it; raises Damaged."""
        message = dict(sent)
        for name in [name for name in sent if name.endswith(".int8")]:
            key, values = name.removesuffix(".int8"), sent[name]
            if key in sent:
                raise Damaged(f"{key}: comes twice")
            if not isinstance(values, Tensor) or not values.dim():
                raise Damaged(f"{name}: not a vector")
            trained = values.shape[-1]
            rest = message.get(f"{key}.rest", values[..., :0])
            more = rest.shape[-1] if isinstance(rest, Tensor) and rest.dim() else 0
            message[key] = self.decoded(key, message, trained, trained + more)
        return message


def make_compression(name: Literal["none", "int8", "top-k"], share: float) -> Compression | None:
    """What `engine.compression` asks for."""
    return None if name == "none" else Compression(name, share)


class Outgoing(NamedTuple):
    """A round's messages, and the server's state that they were made of."""

    server: State
    messages: dict[int, Message]  # as the clients take them
    sent: dict[int, Message]  # as they travel


class Outbox:
    """The server's side: its messages as they travel, and what they have left unsaid."""

    def __init__(self, compression: Compression | None, form: Form) -> None:
        self._compression, self._form = compression, form
        self._unsaid: State = {}  # by entry of the server's state

    def send(
        self,
        server: State,
        make: Callable[[State], dict[int, Message]],
        rng: ServerRng,
        *,
        last: bool = False,
    ) -> Outgoing:
        """The messages that ``make`` makes of the server's state.

        ``last``: nothing comes of them at the server, whose state stays as it is.
        """
        messages, compression = make(server), self._compression
        if compression is None or compression.kind != "int8":
            return Outgoing(server, messages, messages)
        said, unsaid, known = self._say(compression, server, divided(messages)[0], rng)
        if known:  # what is derived from it is derived from what was said
            messages = make(said)
        if not last:
            self._unsaid = unsaid
        common, own = divided(messages)
        shared = self._encoded(compression, common, rng, None, known)
        each = {i: self._encoded(compression, own[i], rng, i, {}) for i in own}
        taken = compression.opened(shared)
        return Outgoing(
            server if last else said,
            {i: {**taken, **compression.opened(each[i])} for i in each},
            {i: {**shared, **each[i]} for i in each},
        )

    def _say(
        self, compression: Compression, server: State, common: Message, rng: ServerRng
    ) -> tuple[State, State, dict[str, State]]:
        """Tell all clients of the server's state: what it is then, what is left unsaid, and how
        each entry travels."""
        unsaid, known = dict(self._unsaid), {}
        for key, value in common.items():
            name = _name_in(server, key, value)
            if name is None or not self._form.travels(value):
                continue
            trained = self._form.trained(value.shape[-1])
            owed = value.clone()
            if name in unsaid:
                owed[..., :trained] += unsaid[name]
            lot = rng.generator(f"compression {key}")
            known[key] = compression.encoded(key, owed, trained, lot)
            heard = compression.decoded(key, dict(known[key]), trained, value.shape[-1])
            unsaid[name] = (owed - heard)[..., :trained]
            server = {**server, name: heard}
        return server, unsaid, known

    def _encoded(
        self,
        compression: Compression,
        values: Message,
        rng: ServerRng,
        client: int | None,
        known: Mapping[str, State],
    ) -> Message:
        """Entries for one client, or for all, as they travel."""
        found: Message = {}
        for key, value in values.items():
            if key in known:
                found |= known[key]
            elif self._form.travels(value):
                purpose = f"compression {key}" if client is None else f"compression {key} of one"
                lot = rng.generator(purpose, client or 0)
                trained = self._form.trained(value.shape[-1])
                found |= compression.encoded(key, value, trained, lot)
            else:
                found[key] = value
        return found

    def snapshot(self) -> State:
        return {f"unsaid.{name}": values for name, values in self._unsaid.items()}

    def restore(self, cut: State, device: torch.device) -> None:
        told = {k: v for k, v in cut.items() if k.startswith("unsaid.")}
        self._unsaid = {k.removeprefix("unsaid."): v.to(device) for k, v in told.items()}


def _name_in(server: State, key: str, value: Any) -> str | None:
    """The entry of the server's state that this entry of a message is."""
    if server.get(key) is value:
        return key
    return next((name for name, entry in server.items() if entry is value), None)


def _blocks(vector: Tensor) -> Tensor:
    padded = pad(vector, (0, -vector.shape[-1] % BLOCK))
    return padded.reshape(*vector.shape[:-1], -1, BLOCK)


def _part(parts: State, name: str, dtype: torch.dtype) -> Tensor:
    found = parts.pop(name, None)
    if found is None:
        raise Damaged(f"keys: {name} missing")
    if not isinstance(found, Tensor) or found.dtype != dtype:
        raise Damaged(f"{name}: not a tensor of {str(dtype).removeprefix('torch.')}")
    return found


def _check_shape(name: str, part: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(part.shape) != shape:
        raise Damaged(f"{name}: shape {tuple(part.shape)}, expected {shape}")
