"""One run: a method, a seed, and its rounds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgfed import pairs
from pgfed.core import (
    Algorithm,
    FederationInfo,
    Mean,
    Message,
    State,
    Update,
    draw_cohort,
)
from pgfed.data.federation import Federation
from pgfed.engine.backend import Backend
from pgfed.engine.client import ClientSide, on_device, one_thread
from pgfed.engine.replies import overhead_bytes, payload_bytes, refusal
from pgfed.engine.store import ClientStore

LAST_ROUNDS = 10  # always scored: reports lead with their mean


class Run:
    """The rounds of one method under one seed. `step` runs the next round."""

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        backend: Backend,
        *,
        seed: int,
        rounds: int,
        cohort: int,
        evaluate_every: int = 1,
        mean: Mean | None = None,
        lose: Callable[[int, int], bool] | None = None,
        store: ClientStore | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.federation = backend.federation
        self.backend = backend
        self.seed = seed
        self.rounds = rounds
        self.evaluate_every = evaluate_every
        self.task = backend.task(seed)
        self.info = FederationInfo(len(federation), cohort, self.task.layout)
        self._mean = mean or Mean()
        self._lose = lose

        w0 = self.task.initial()
        self._side = ClientSide(algorithm, self.task, self.federation, seed, w0, self.info)
        backend.begin(self._side)
        self.round = 0
        self.server = on_device(algorithm.init_server(w0, self.info), self.task.device)
        self.history: list[dict[str, Any]] = []
        self.store = store or ClientStore()
        n = len(federation)
        self.accuracy = np.full(n, np.nan)
        self.loss = np.full(n, np.nan)
        self.validation_accuracy = np.full(n, np.nan)
        self._unscored = set(range(n))
        self.best_round = 0
        self.best_accuracy = -1.0
        self.best_accuracy_per_client = np.full(n, np.nan)

    @property
    def finished(self) -> bool:
        return self.round >= self.rounds

    def step(self) -> dict[str, Any]:
        """Run the next round; its record is a line of history.jsonl."""
        with one_thread():
            record = self._step()
        self.history.append(record)
        return record

    def _step(self) -> dict[str, Any]:
        began = time.perf_counter()
        t = self.round + 1
        cohort = draw_cohort(self.seed, t, self.info.clients, self.info.cohort)
        messages = self.algorithm.messages(self.server, cohort)
        common = _common(messages)
        own = {i: {k: v for k, v in messages[i].items() if k not in common} for i in cohort}
        started = time.perf_counter()
        results = dict(
            self.backend.map("train", t, cohort, common, lambda i: (self.store.get(i), own[i]))
        )
        train_seconds = time.perf_counter() - started

        updates: dict[int, Update] = {}
        states: dict[int, State] = {}
        dropped: list[dict[str, Any]] = []
        down: Counter[str] = Counter()
        up: Counter[str] = Counter()
        overhead = {"down": 0, "up": 0}
        for i in cohort:
            down.update(payload_bytes(messages[i]))
            overhead["down"] += overhead_bytes(messages[i])
            if i not in results or (self._lose is not None and self._lose(t, i)):
                dropped.append({"client": i, "reason": "no reply"})
                continue
            state, update, _ = results[i]
            up.update(payload_bytes(update))
            overhead["up"] += overhead_bytes(update)
            limit = int(self.federation.n_train[i])
            reason = refusal(self.algorithm, self.info.layout, messages[i], update, limit)
            if reason is not None:
                dropped.append({"client": i, "reason": reason})
                continue
            updates[i] = update
            states[i] = state
        self.server = self.algorithm.aggregate(self.server, updates, self._mean)
        # Only now do the clients' new states count: a reply that was dropped leaves the old one.
        for i, state in states.items():
            self.store.put(i, t, state)
        self.backend.commit(t, list(states))
        self._unscored |= states.keys()
        self.round = t

        scores = self._score() if self._scored(t) else {}
        images = sum(self.algorithm.images(int(self.federation.n_train[i])) for i in cohort)
        return {
            "round": t,
            "cohort": cohort,
            "mean_accuracy": None,
            "mean_loss": None,
            **scores,
            "bytes_down": sum(down.values()),
            "bytes_up": sum(up.values()),
            "overhead_down": overhead["down"],
            "overhead_up": overhead["up"],
            "bytes_eval": scores.get("bytes_eval", 0),
            "bytes_by_key": {"down": dict(down), "up": dict(up)},
            "dropped": dropped,
            "images": images,
            "train_seconds": train_seconds,
            "client_seconds": {i: results[i][2]["seconds"] for i in sorted(results)},
            "seconds": time.perf_counter() - began,
        }

    def _scored(self, t: int) -> bool:
        return t % self.evaluate_every == 0 or t > self.rounds - LAST_ROUNDS

    def _score(self) -> dict[str, Any]:
        """Score the clients whose personalized model can have changed."""
        public = self.algorithm.public(self.server)
        clients = range(self.info.clients) if public else sorted(self._unscored)
        for i, (s,) in self._map("score", clients, public):
            if s["test_n"]:
                self.accuracy[i] = s["test_correct"] / s["test_n"]
                self.loss[i] = s["test_loss"] / s["test_n"]
            if s["validation_n"]:
                self.validation_accuracy[i] = s["validation_correct"] / s["validation_n"]
        self._unscored.clear()
        mean = float(np.nanmean(self.accuracy)) if not np.isnan(self.accuracy).all() else None
        if mean is not None and mean > self.best_accuracy:
            self.best_round, self.best_accuracy = self.round, mean
            self.best_accuracy_per_client = self.accuracy.copy()
        scores: dict[str, Any] = {
            "mean_accuracy": mean,
            "mean_loss": None if mean is None else float(np.nanmean(self.loss)),
            "bytes_eval": len(clients) * sum(payload_bytes(public).values()),
        }
        if not np.isnan(self.validation_accuracy).all():
            scores["mean_validation_accuracy"] = float(np.nanmean(self.validation_accuracy))
        return scores

    def _map(
        self, stage: str, clients: Sequence[int], common: Message
    ) -> Iterator[tuple[int, list[State]]]:
        return self.backend.map(
            stage, self.round, clients, common, lambda i: (self.store.get(i), {})
        )

    # -- stopping and going on ------------------------------------------------------------------

    _SCORES = ("accuracy", "loss", "validation_accuracy", "best_accuracy_per_client")

    def snapshot(self) -> tuple[State, dict[str, Any]]:
        """What `restore` needs beside the clients' states and the history: tensors, and JSON."""
        cut = {f"server.{k}": v for k, v in self.server.items()}
        cut |= {f"run.{k}": torch.from_numpy(getattr(self, k).copy()) for k in self._SCORES}
        cut["run.unscored"] = torch.tensor(sorted(self._unscored), dtype=torch.int64)
        return cut, {"best_round": self.best_round, "best_accuracy": self.best_accuracy}

    def restore(self, cut: State, meta: dict[str, Any]) -> None:
        """Go on after round ``meta["round"]``; the caller puts back `history`."""
        server = {k.removeprefix("server."): v for k, v in cut.items() if k.startswith("server.")}
        self.server = on_device(server, self.task.device)
        for k in self._SCORES:
            setattr(self, k, cut[f"run.{k}"].numpy())
        self._unscored = set(cut["run.unscored"].tolist())
        self.round = meta["round"]
        self.best_round, self.best_accuracy = meta["best_round"], meta["best_accuracy"]

    # -- what came out -------------------------------------------------------------------------

    def touched(self, client: int) -> bool:
        """Has this client ever taken part?"""
        return client in self.store

    def state(self, client: int) -> State:
        """A client's state as of the last round that counted."""
        state = self.store.get(client)
        if state is not None:
            return state
        return self.algorithm.init_client(self._side.w0, self._side.client(client))

    def personal_models(self, clients: Sequence[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        """(client, its personalized model), in any order."""
        public = self.algorithm.public(self.server)
        wanted = range(self.info.clients) if clients is None else clients
        for i, (result,) in self._map("personal", wanted, public):
            yield i, result["w"]

    def personal_model(self, client: int) -> Tensor:
        return dict(self.personal_models([client]))[client]

    def global_model(self) -> Tensor:
        """The model a new client starts from."""
        with one_thread():
            asks = type(self.algorithm).share is not Algorithm.share
            clients = range(self.info.clients) if asks else []
            shares = {i: share for i, (share,) in self._map("share", clients, {})}
            return self.algorithm.global_model(self.task, self.server, shares)

    def alpha(self) -> dict[str, Any] | None:
        """The matrix A of the PGFed family: dense up to 2,000 clients, else its touched entries."""
        return pairs.export(self.server) if "alpha_pairs" in self.server else None


def _common(messages: dict[int, Message]) -> Message:
    """The entries that are one and the same object in all messages: they travel once."""
    first, *others = messages.values()
    return {k: v for k, v in first.items() if all(o.get(k) is v for o in others)}
