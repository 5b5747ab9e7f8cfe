"""Nothing a client sends is used before it is checked, and every byte is counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pgfed.methods.values import Kind, Message, State, Update
from pgfed.model.layout import Layout
from pgfed.model.objectives import Objective

_FLOAT32_MAX = torch.finfo(torch.float32).max
MAX_INDEX = 10**6  # of the few choices that a method has
CODED = ("int8", "scale", "index", "value", "rest")  # after a key and a dot: parts of an entry
MAX_SAMPLES = 10**8  # nobody holds more: a larger claim is a mistake, or wants to outweigh others


def divided(messages: dict[int, Message]) -> tuple[Message, dict[int, Message]]:
    """The entries that are one and the same object in all messages, which travel once; and the
    others, client by client."""
    first, *others = messages.values()
    common = {k: v for k, v in first.items() if all(o.get(k) is v for o in others)}
    own = {i: {k: v for k, v in m.items() if k not in common} for i, m in messages.items()}
    return common, own


def collect(
    answers: Iterable[tuple[int, list[State]]], asked: Sequence[int], round: int
) -> tuple[dict[int, list[State]], dict[int, str]]:
    """The one answer of each client to this round's question, and why others must not be used.

    Of a client that answers more than once nothing is used: which answer came first may depend on
    the engine, and must not decide.
    """
    answered: dict[int, list[list[State]]] = {}
    for client, answer in answers:
        answered.setdefault(client, []).append(answer)
    replies: dict[int, list[State]] = {}
    refused: dict[int, str] = {}
    for client, (answer, *more) in sorted(answered.items()):
        reason = _malformed(answer, round)
        if client not in asked:
            refused[client] = "was not asked"
        elif more:
            refused[client] = f"answered {1 + len(more)} times"
        elif reason is not None:
            refused[client] = reason
        else:
            replies[client] = answer
    return replies, refused


def _malformed(answer: list[State], round: int) -> str | None:
    if len(answer) != 3:
        return f"{len(answer)} parts, expected state, update and echo"
    echo = answer[2]
    if type(echo.get("round")) is not int or echo["round"] != round:
        return f"round: answers round {_shown(echo.get('round'))}, asked was {round}"
    seconds = echo.get("seconds")
    if type(seconds) is not float or not 0 <= seconds < float("inf"):
        return f"seconds: {_shown(seconds)} is not a duration"
    return None


@dataclass(frozen=True)
class Form:
    """What fixes the shapes of a client's reply."""

    layout: Layout
    shared: str = "all"
    outputs: int = 0  # of the model, which are its classes
    width: int = 0  # features that the head is given

    def shape(self, kind: Kind, message: Message) -> tuple[int, ...]:
        if kind == "row":
            return (len(message["ids"]) if "ids" in message else 0,)
        if kind == "classes":
            return (self.outputs,)
        if kind == "prototypes":
            return (self.outputs, self.width)
        parts = {
            "model": self.layout.shared,
            "step": self.layout.shared,
            "own": self.layout.own,
            "gradient": self.layout.stepped,
        }
        return (parts[kind](self.shared).size,)

    def trained(self, size: int) -> int:
        """How many of a vector's entries are trained; the buffers come after them."""
        whole = {self.layout.n: self.layout.d}
        whole[self.layout.shared(self.shared).size] = self.layout.stepped(self.shared).size
        return whole.get(size, size)

    def travels(self, value: Any) -> bool:
        """Whether an entry of a message is as long as a model or a gradient, or several."""
        if not isinstance(value, Tensor) or value.dtype != torch.float32 or not value.dim():
            return False
        parts = self.layout.shared(self.shared), self.layout.stepped(self.shared)
        return value.shape[-1] in {self.layout.n, self.layout.d, *(part.size for part in parts)}

    def size(self, declared: Mapping[str, Kind], message: Message) -> int:
        """Bytes of the arrays of a reply that holds what is declared."""
        arrays = [kind for kind in declared.values() if kind not in ("scalar", "count", "index")]
        return sum(4 * math.prod(self.shape(kind, message)) for kind in arrays)


def refusal(
    declared: Mapping[str, Kind],
    form: Form,
    message: Message,
    update: Update,
    limit: int,
    max_norm: float | None = None,
) -> str | None:
    """Why what a client sent must not be used, or None. ``declared``: what it was to send.

    ``limit``: the most samples it may claim. ``max_norm``: the longest gradient and step; of a
    model the longest step from the one that the server sent, where it sent one.
    """
    missing = [key for key in declared if key not in update]
    if missing:
        return f"keys: {', '.join(missing)} missing"
    extra = [_shown(key) for key in update if key not in declared]
    if extra:
        return f"keys: {len(extra)} not asked for, the first {extra[0]}"
    for key, kind in declared.items():
        value: Any = update[key]
        if kind == "count":
            if type(value) is not int or not 1 <= value <= limit:
                return f"{key}: {_shown(value)} is not a count between 1 and {limit}"
        elif kind == "scalar":
            if type(value) is not float or not abs(value) <= _FLOAT32_MAX:
                return f"{key}: {_shown(value)} is not a finite number"
        elif kind == "index":
            if type(value) is not int or not 0 <= value < MAX_INDEX:
                return f"{key}: {_shown(value)} is not an index below {MAX_INDEX}"
        else:
            if not isinstance(value, Tensor) or value.dtype != torch.float32:
                return f"{key}: not a float32 tensor"
            shape = form.shape(kind, message)
            if tuple(value.shape) != shape:
                return f"{key}: shape {tuple(value.shape)}, expected {shape}"
            if not bool(torch.isfinite(value).all()):
                return f"{key}: holds NaN or infinite values"
            start = message.get(key)
            if max_norm is not None and (kind in ("step", "gradient") or start is not None):
                step = value if start is None else value - start
                norm = float(torch.linalg.vector_norm(step))
                if norm > max_norm:
                    return f"{key}: norm {norm:.3g}, allowed at most {max_norm:g}"
    return None


def score_refusal(scores: State, objective: Objective) -> str | None:
    """Why a client's scores must not be used. A loss may be anything: models do diverge.

    A metric may be missing where it is undefined.
    """
    for key, other in scores.items():
        if type(other) not in (int, float):
            return f"{key}: {_shown(other)} is not a number"
    low, high = objective.bounds
    for part in ("test", "validation"):
        n, loss = scores.get(f"{part}_n"), scores.get(f"{part}_loss")
        if type(n) is not int or not 0 <= n <= MAX_SAMPLES:
            return f"{_shown(n)} {part} samples"
        if type(loss) is not float:
            return f"{part}_loss: {_shown(loss)} is not a number"
        value = scores.get(f"{part}_score")
        if value is not None and (type(value) is not float or not low <= value <= high):
            return f"{part}_score: {_shown(value)} is not between {low:g} and {high:g}"
    return None


def _shown(value: Any) -> str:
    """A value for one line of the history, however long what was sent."""
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, int) and abs(value) >= 2**63:
        return f"an integer of {value.bit_length()} bits"
    return repr(value) if value is None or isinstance(value, int | float) else type(value).__name__


def payload_bytes(values: Message) -> dict[str, int]:
    """Payload by key, as it travels; counts, ids and round numbers are not payload.

    What an entry is encoded as (compression.py) counts as that entry.
    """
    sizes: Counter[str] = Counter()
    for name, value in values.items():
        key, _, part = str(name).rpartition(".")  # what a client sent may have keys of any kind
        coded = part in CODED
        if isinstance(value, Tensor) and (coded or value.dtype.is_floating_point):
            sizes[key if coded else name] += value.numel() * value.element_size()
        elif isinstance(value, float):
            sizes[name] += 4
    return dict(sizes)


def overhead_bytes(values: Message) -> int:
    """What travels beside the payload: integers, eight bytes each."""
    return sum(
        8 * (value.numel() if isinstance(value, Tensor) else 1)
        for name, value in values.items()
        if str(name).rpartition(".")[2] not in CODED
        and not (
            isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point())
        )
    )


class Traffic:
    """What one round sent, by key and direction; nothing where it ``counts`` not."""

    def __init__(self, *, counts: bool = True) -> None:
        self._counts = counts
        self._bytes: dict[str, Counter[str]] = {"down": Counter(), "up": Counter()}
        self._overhead: Counter[str] = Counter()

    def down(self, message: Message) -> None:
        self._count("down", message)

    def up(self, update: Update) -> None:
        self._count("up", update)

    def _count(self, direction: str, values: Message) -> None:
        if not self._counts:
            return
        self._bytes[direction].update(payload_bytes(values))
        self._overhead[direction] += overhead_bytes(values)

    def record(self) -> dict[str, Any]:
        """As a round's record tells of it."""
        return {
            "bytes_down": sum(self._bytes["down"].values()),
            "bytes_up": sum(self._bytes["up"].values()),
            "overhead_down": self._overhead["down"],
            "overhead_up": self._overhead["up"],
            "bytes_by_key": {direction: dict(sizes) for direction, sizes in self._bytes.items()},
        }
