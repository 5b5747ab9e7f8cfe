"""One run: a method, a seed, and its rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pgfed.config.experiment import LAST
from pgfed.data.federation import Federation
from pgfed.engine import personal
from pgfed.engine.backends.base import Backend
from pgfed.engine.client import ClientSide, on_device, one_thread
from pgfed.engine.exchange.attacks import Attack
from pgfed.engine.exchange.compression import Compression, Damaged, Outbox, Outgoing
from pgfed.engine.exchange.replies import (
    Traffic,
    collect,
    divided,
    payload_bytes,
    refusal,
    score_refusal,
)
from pgfed.engine.exchange.robust import defended
from pgfed.engine.privacy import Protection
from pgfed.engine.storage.start import Start
from pgfed.engine.storage.store import ClientStore
from pgfed.methods.averaging import Mean, ServerOptimizer
from pgfed.methods.contract import Algorithm, FederationInfo
from pgfed.methods.randomness import ServerRng, draw_cohort, further_seed
from pgfed.methods.roles import rounds_of
from pgfed.methods.values import Kind, Message, State, Update

CURVES = 1_000  # clients up to which the history keeps everybody's score


class Run:
    """The rounds of one method under one seed. `step` runs the next round.

    ``max_update_norm``: replies whose gradient, or step from the model that was sent, is longer are
    dropped. ``attack``: some clients simulate one; all means are then over the honest clients.
    ``lose``: whose reply to a round gets lost; ``away``: who is not even reached. ``start``: server
    and clients begin with an earlier run's models. ``protection``: clients' gradients are noisy.
    """

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
        max_update_norm: float | None = None,
        optimizer: ServerOptimizer | None = None,
        lose: Callable[[int, int], bool] = lambda round, client: False,
        away: Callable[[int, int], bool] = lambda round, client: False,
        attack: Attack | None = None,
        store: ClientStore | None = None,
        start: Start | None = None,
        protection: Protection | None = None,
        compression: Compression | None = None,
    ) -> None:
        self.federation = backend.federation
        self.backend = backend
        self.seed = seed
        self.rounds = rounds_of(algorithm.course, rounds)
        self.evaluate_every = evaluate_every
        self.task = backend.task(seed)
        algorithm.check_model(self.task)
        algorithm, _ = personal.fit(algorithm, self.task)
        self.algorithm = algorithm
        if algorithm.course != "rounds":
            cohort = len(federation) if algorithm.course == "once" else 1
        self.info = FederationInfo(len(federation), cohort, self.task.layout)
        self._mean = mean or Mean()
        self._max_update_norm = max_update_norm
        self._lose, self._away = lose, away
        self.attackers = attack.attackers(seed, len(federation)) if attack else frozenset()
        self._honest = ~np.isin(np.arange(len(federation)), sorted(self.attackers))

        self._start = start
        w0 = self.task.initial() if start is None else start.shared(self.task)
        self._side = ClientSide(
            algorithm,
            self.task,
            self.federation,
            seed,
            w0,
            self.info,
            rounds,
            attack,
            self.attackers,
            protection,
            compression,
        )
        self._outbox = Outbox(compression, self._side.form)
        backend.begin(self._side)
        self.round = 0
        known = replace(
            self.info,
            start=lambda k: backend.task(further_seed(seed, k)).initial(),
            samples=self._side.samples,
        )
        self.server = on_device(algorithm.init_server(w0, known), self.task.device)
        self._optimizer = optimizer if algorithm.averages and "w" in self.server else None
        if self._optimizer:
            trained = self.task.layout.stepped(algorithm.shared).size
            self.server = self._optimizer.begun(self.server, trained)
        self._told = personal.Told(algorithm)
        self.history: list[dict[str, Any]] = []
        self.store = store or ClientStore()
        n = len(federation)
        self.score = np.full(n, np.nan)
        self.loss = np.full(n, np.nan)
        self.validation_score = np.full(n, np.nan)
        self._unscored = np.ones(n, dtype=np.bool_)
        self.best_round, self.best_score = 0, 0.0
        self.best_score_per_client = np.full(n, np.nan)
        self.last_scores = np.empty((0, n))  # of the last ten rounds, a row each

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
        cohort = self._cohort(t)
        rng = ServerRng(self.seed, t)
        algorithm = self.algorithm.at(t, self.rounds)
        going = self._outbox.send(
            self.server, lambda s: self._told.asked(algorithm.messages(s, cohort, rng)), rng
        )
        self.server = going.server
        common, own = divided(going.sent)
        started = time.perf_counter()
        asked = [i for i in cohort if not self._away(t, i)]
        given = self.backend.map("train", t, asked, common, lambda i: (self._known(i), own[i]))
        results, refused = collect(given, asked, t)
        train_seconds = time.perf_counter() - started
        traffic = Traffic(counts=self.algorithm.course != "pooled")
        dropped = [{"client": i, "reason": refused[i]} for i in refused if i not in cohort]
        updates, states = self._accepted(going, results, refused, traffic, dropped)
        new = algorithm.aggregate(self.server, updates, self._mean, rng)
        self.server = self._optimizer.stepped(self.server, new) if self._optimizer else new
        # Only now do the clients' new states count: a reply that was dropped leaves the old one.
        for i, state in states.items():
            self.store.put(i, t, state)
        self.backend.commit(t, list(states))
        self._unscored[list(states)] = True
        self.round = t
        samples = sum(self.algorithm.images(self._side.trains_on(i)) for i in results)
        if t == self.rounds and self.algorithm.personal.refresh:
            samples += self._refresh(traffic, dropped)

        scores = self._score(dropped) if self._scored(t) else {}
        if t > self.rounds - LAST:
            self.last_scores = np.vstack([self.last_scores, self.score])
        return {
            "round": t,
            "cohort": cohort,
            "mean_score": None,
            "mean_loss": None,
            **scores,
            **traffic.record(),
            "bytes_eval": scores.get("bytes_eval", 0),
            "dropped": dropped,
            "left_out": self._mean.left_out(updates),
            "samples": samples,
            "train_seconds": train_seconds,
            "client_seconds": {i: results[i][2]["seconds"] for i in sorted(results)},
            "seconds": time.perf_counter() - began,
        }

    def _refresh(self, traffic: Traffic, dropped: list[dict[str, Any]]) -> int:
        """Every client trains once more from the final global model; samples stepped over."""
        t, clients = self.rounds + 1, list(range(self.info.clients))
        algorithm = self.algorithm.at(self.rounds, self.rounds)
        rng = ServerRng(self.seed, t)
        going = self._outbox.send(
            self.server, lambda s: algorithm.messages(s, clients, rng), rng, last=True
        )
        common, own = divided(going.sent)
        asked = self.backend.map("refresh", t, clients, common, lambda i: (self._known(i), own[i]))
        results, refused = collect(asked, clients, t)
        for i in clients:
            traffic.down(going.sent[i])
            if i in results:
                self.store.put(i, t, results[i][0])
            else:
                dropped.append({"client": i, "reason": refused.get(i, "not refreshed")})
        self.backend.commit(t, list(results))
        self._unscored[list(results)] = True
        return sum(self.algorithm.images(self._side.trains_on(i)) for i in results)

    def _cohort(self, t: int) -> list[int]:
        if self.algorithm.course == "pooled":
            return [0]  # whoever does the work on everybody's data
        keys = self.federation.keys
        return draw_cohort(
            self.seed, t, self.info.clients, self.info.cohort, None if keys is None else list(keys)
        )

    def _accepted(
        self,
        going: Outgoing,
        results: Mapping[int, list[State]],
        refused: Mapping[int, str],
        traffic: Traffic,
        dropped: list[dict[str, Any]],
    ) -> tuple[dict[int, Update], dict[int, State]]:
        """(updates, new states) of those whose reply counts; why not, of the others."""
        updates: dict[int, Update] = {}
        states: dict[int, State] = {}
        for i, message in going.messages.items():
            traffic.down(going.sent[i])
            if i not in results or self._lose(self.round + 1, i):
                dropped.append({"client": i, "reason": refused.get(i, "no reply")})
                continue
            state, sent, _ = results[i]
            traffic.up(sent)
            declared = personal.declared(message, self.algorithm)
            try:
                update = self._side.heard(declared, message, sent)
                reason = self._refusal(i, declared, message, update) or personal.refusal(update)
            except Damaged as damage:
                reason = str(damage)
            if reason is not None:
                dropped.append({"client": i, "reason": reason})
                continue
            updates[i] = self._told.take(i, update)
            states[i] = state
        return updates, states

    def _refusal(
        self, client: int, declared: Mapping[str, Kind], message: Message, update: Update
    ) -> str | None:
        limit = self._side.trains_on(client)
        return refusal(declared, self._side.form, message, update, limit, self._max_update_norm)

    def _scored(self, t: int) -> bool:
        return t % self.evaluate_every == 0 or t > self.rounds - LAST

    def _score(self, dropped: list[dict[str, Any]]) -> dict[str, Any]:
        """Score the clients whose personalized model can have changed.

        What cannot be a score is added to ``dropped``; the client's last one stands.
        """
        objective = self.task.objective
        public = self._public()
        clients = range(self.info.clients) if public else np.flatnonzero(self._unscored).tolist()
        for i, (s,) in self._map("score", clients, public):
            reason = score_refusal(s, objective)
            if reason is not None:
                dropped.append({"client": i, "reason": f"score: {reason}"})
                continue
            if s["test_n"]:
                self.score[i] = s.get("test_score", np.nan)
                self.loss[i] = s["test_loss"] / s["test_n"]
            if s["validation_n"]:
                self.validation_score[i] = s.get("validation_score", np.nan)
            self._unscored[i] = False
        mean = self._mean_of(self.score)
        if mean is not None and (self._is_best(mean) or self.algorithm.scored_last):
            self.best_round, self.best_score = self.round, mean
            self.best_score_per_client = self.score.copy()
        scores: dict[str, Any] = {
            "mean_score": mean,
            "mean_loss": self._mean_of(self.loss),
            "bytes_eval": len(clients) * sum(payload_bytes(public).values()),
        }
        if self.info.clients <= CURVES:
            scores["client_score"] = [
                None if np.isnan(a) else round(float(a), 4) for a in self.score
            ]
        tested = self._honest & ~self._unscored & (self.federation.n_test > 0)
        if diverged := int(np.isnan(self.loss[tested]).sum()):
            scores["diverged"] = diverged  # clients whose model holds NaN
        validation = self._mean_of(self.validation_score)
        return scores if validation is None else {**scores, "mean_validation_score": validation}

    def _public(self) -> Message:
        """What a client needs of the server for its personal model."""
        return personal.public(self.algorithm, self.task, self.server, self._told)

    def _is_best(self, mean: float) -> bool:
        return not self.best_round or self.task.objective.primary.better(mean, self.best_score)

    def _mean_of(self, values: NDArray[np.float64]) -> float | None:
        """The mean over the honest clients that have a value; losses may be infinite."""
        known = values[self._honest & np.isfinite(values)]
        return float(known.mean()) if len(known) else None

    def _map(
        self, stage: str, clients: Sequence[int], common: Message
    ) -> Iterator[tuple[int, list[State]]]:
        return self.backend.map(stage, self.round, clients, common, lambda i: (self._known(i), {}))

    def _known(self, client: int) -> State | None:
        """A client's state; None where it has none but that which every client begins with."""
        state = self.store.get(client)
        if state is not None or self._start is None:
            return state
        own = self._start.personal(self.task, client)
        if own is None:
            return None
        own = self._side.unframed(client, own)
        return self.algorithm.init_client(own, self._side.client(client))

    # -- stopping and going on ------------------------------------------------------------------

    _SCORES = ("score", "loss", "validation_score", "best_score_per_client", "last_scores")

    def snapshot(self) -> tuple[State, dict[str, Any]]:
        """What `restore` needs beside the clients' states and the history: tensors, and JSON."""
        cut = {f"server.{k}": v for k, v in self.server.items()}
        cut |= {f"run.{k}": torch.from_numpy(getattr(self, k).copy()) for k in self._SCORES}
        cut |= self._told.snapshot() | self._outbox.snapshot()
        cut["run.unscored"] = torch.from_numpy(np.flatnonzero(self._unscored))
        return cut, {"best_round": self.best_round, "best_score": self.best_score}

    def restore(self, cut: State, meta: dict[str, Any]) -> None:
        """Go on after round ``meta["round"]``; `Checkpoints` puts back the rest."""
        server = {k.removeprefix("server."): v for k, v in cut.items() if k.startswith("server.")}
        self.server = on_device(server, self.task.device)
        self._outbox.restore(cut, self.task.device)
        self._told.restore(cut)
        for k in self._SCORES:
            setattr(self, k, cut[f"run.{k}"].numpy())
        self._unscored[:] = False
        self._unscored[cut["run.unscored"].numpy()] = True
        self.round = meta["round"]
        # A run may go on for longer than it was begun for: then other rounds are the last.
        kept = max(0, self.round - (self.rounds - LAST))
        self.last_scores = self.last_scores[max(0, len(self.last_scores) - kept) :]
        self.best_round, self.best_score = meta["best_round"], meta["best_score"]

    # -- what came out -------------------------------------------------------------------------

    def touched(self, client: int) -> bool:
        """Has this client ever taken part?"""
        return client in self.store

    def state(self, client: int) -> State:
        """A client's state as of the last round that counted."""
        state = self._known(client)
        if state is not None:
            return state
        return self.algorithm.init_client(self._side.w0, self._side.client(client))

    def personal_models(self, clients: Sequence[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        """(client, its personalized model), in any order."""
        public = self._public()
        wanted = range(self.info.clients) if clients is None else clients
        for i, (result,) in self._map("personal", wanted, public):
            yield i, result["w"]

    def evidence(self) -> Iterator[tuple[int, State, State]]:
        """(client, what its personalized model came to per test sample, its metrics); any order."""
        public = self._public()
        for i, (found, numbers) in self._map("evidence", range(self.info.clients), public):
            yield i, found, numbers

    def personal_model(self, client: int) -> Tensor:
        return dict(self.personal_models([client]))[client]

    def global_model(self) -> Tensor:
        """The model a new client starts from."""
        with one_thread():
            asked = self.algorithm.shares_of(self.info.layout)
            clients = range(self.info.clients) if asked else []
            shares = {
                i: share
                for i, (share,) in self._map("share", clients, {})
                if self._refusal(i, asked, {}, share) is None
            }
            if type(self._mean) is not Mean:
                shares = defended(self._mean, shares)
            return self.algorithm.global_model(self.task, self.server, shares)

    def class_shares(self) -> list[float] | None:
        """Of the federation's classes, where models are corrected from them to a client's own."""
        return self._told.numbers()

    def alpha(self) -> dict[str, Any] | None:
        """The matrix A of the PGFed family: dense up to 2,000 clients, else its touched entries."""
        found = self.algorithm.export(self.server)
        return found if "start" in found else None
