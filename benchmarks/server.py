"""PGFed's server: all auxiliary gradients of a round, its bytes, and the matrix A.

The paper's CNN. The plain loop computes one client's auxiliary gradient after the other, tensor by
tensor; as it grows with the square of the cohort, a few clients are timed and multiplied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

import torch
from torch import Tensor

from benchmarks.text import show, table
from pgfed.engine.client import one_thread
from pgfed.engine.exchange.replies import payload_bytes
from pgfed.methods import alphas as pairs
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import FederationInfo
from pgfed.methods.pgfed import PGFed
from pgfed.methods.randomness import ServerRng, draw_cohort
from pgfed.methods.values import State, Update
from pgfed.model.networks import make_task
from pgfed.results.formats import size
from pgfed.tuning.speed import CIFAR

COHORTS = (6, 25, 100, 400)
LOOPED = 4  # clients that the plain loop is timed for
CLIENTS = (100, 1_000, 10_000, 100_000)


def seconds(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)


def run(cohorts: tuple[int, ...] = COHORTS, rounds: int = 500) -> Iterator[str]:
    rows = [_step(m) for m in cohorts]
    yield from table(
        (
            "clients per round",
            "auxiliary gradients",
            "plain loop",
            "ours is",
            "aggregation",
            "bytes down",
            "bytes up",
        ),
        rows,
    )
    yield f"Both on one thread; the plain loop timed for {LOOPED} clients and multiplied."
    yield ""
    yield f"The matrix A after {rounds} rounds of 20 clients:"
    yield from table(
        ("clients", "pairs that met", "memory", "dense it would be", "ms per round"),
        [_matrix(n, 20, rounds) for n in CLIENTS],
    )


def _step(m: int) -> tuple[str, ...]:
    task = make_task("cnn", CIFAR, 10, seed=0)
    method, w = PGFed(), task.initial()
    gradients = torch.randn(m, task.d)
    cohort = list(range(m))

    def updates(met: int) -> dict[int, Update]:
        return {
            i: {"w": w, "gradient": gradients[i], "r": 1.0, "alpha": torch.rand(met), "n": 100}
            for i in cohort
        }

    mean, rng = Mean(), ServerRng(0, 1)
    with one_thread():
        server = method.init_server(w, FederationInfo(m, m, task.layout))
        server = method.aggregate(server, updates(0), mean, rng)  # round 1: nobody has met
        server = method.aggregate(server, updates(m), mean, rng)
        repeats = 3 if m > 100 else 7
        ours = seconds(lambda: method.messages(server, cohort, rng), repeats)
        answers = updates(m)
        merging = seconds(lambda: method.aggregate(server, answers, mean, rng), repeats)
        messages = method.messages(server, cohort, rng)
    down = sum(sum(payload_bytes(message).values()) for message in messages.values())
    up = sum(sum(payload_bytes(update).values()) for update in answers.values())
    looped = cohort[:LOOPED]
    aux = [messages[i]["aux"] for i in looped]
    del messages
    with one_thread():
        theirs, found = _loop(server, looped, list(task.named(w).values()), method.mu)
    if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(aux, found, strict=True)):
        raise AssertionError("the plain loop and the matrix product differ")
    theirs *= m / len(looped)
    return (
        str(m),
        f"{1e3 * ours:,.0f} ms",
        f"{1e3 * theirs:,.0f} ms",
        f"{theirs / ours:.1f}x",
        f"{1e3 * merging:,.0f} ms",
        size(down),
        size(up),
    )


def _loop(
    server: State, cohort: list[int], shapes: list[Tensor], mu: float
) -> tuple[float, list[Tensor]]:
    """The same by loops over clients and tensors: seconds, and the auxiliary gradients."""
    sizes = [tensor.numel() for tensor in shapes]
    gradients = [list(row.split(sizes)) for row in server["gradients"]]
    alpha = pairs.matrix(server, cohort, server["ids"]).tolist()
    began = time.perf_counter()
    aux = []
    for i in range(len(cohort)):
        own = [torch.zeros(n) for n in sizes]
        for weight, gradient in zip(alpha[i], gradients, strict=True):
            for total, part in zip(own, gradient, strict=True):
                total.add_(part, alpha=mu * weight)
        aux.append(own)
    took = time.perf_counter() - began
    return took, [torch.cat(own) for own in aux]


def _matrix(clients: int, cohort: int, rounds: int) -> tuple[str, ...]:
    """Sizes of A after so many rounds, and the time of the last ones' reading and writing."""
    server = pairs.empty(clients, cohort)
    last = torch.empty(0, dtype=torch.int64)
    times = []
    with one_thread():
        for t in range(rounds):
            ids = draw_cohort(0, t, clients, cohort)
            rows = {i: torch.rand(len(last)) for i in ids}
            began = time.perf_counter()
            pairs.matrix(server, ids, last)
            server |= pairs.with_rows(server, last, rows)
            times.append(time.perf_counter() - began)
            last = torch.tensor(ids)
    held = sum(v.numel() * v.element_size() for v in server.values() if isinstance(v, Tensor))
    return (
        f"{clients:,}",
        f"{len(server['alpha_pairs']):,}",
        size(held),
        size(4 * clients**2),
        f"{1e3 * median(times[-20:]):.2f}",
    )


if __name__ == "__main__":
    show(run())
