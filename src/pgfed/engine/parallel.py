"""Independent pieces of work in processes of their own, as many at a time as there are cores."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

import torch

from pgfed.engine.backends.process import available_cores, become_child
from pgfed.engine.client import ClientError, one_thread
from pgfed.errors import UserError

T = TypeVar("T")


def jobs_for(items: int, workers: int, device: str) -> int:
    """How many at a time: ``workers`` (0: one per core), and one where forking is not safe."""
    if sys.platform != "linux" or torch.device(device).type != "cpu":
        return 1
    return max(1, min(items, workers or available_cores()))


def side_by_side(
    work: Callable[[T], Any], items: Sequence[T], jobs: int
) -> Iterator[tuple[int, Any]]:
    """(position, work(item)) for all items, in the order in which they end.

    What ``work`` gives must be JSON. It computes with one thread. With one job it is done here.
    """
    if jobs == 1:
        for position, item in enumerate(items):
            with one_thread():
                result = work(item)
            yield position, result
        return
    context = multiprocessing.get_context("fork")
    queue = deque(enumerate(items))
    busy: dict[Connection, tuple[int, ForkProcess]] = {}
    try:
        while queue or busy:
            while queue and len(busy) < jobs:
                position, item = queue.popleft()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_child, args=(theirs, [*busy, ours], work, item, os.getpid())
                )
                busy[ours] = position, process
                process.start()
                theirs.close()
            for ready in wait(list(busy)):
                conn = ready
                assert isinstance(conn, Connection)
                position, process = busy.pop(conn)
                yield position, _result(conn, process)
    finally:
        for conn, (_, process) in busy.items():
            if process.pid is not None:  # interrupted while it was being started
                process.kill()
                process.join()
            conn.close()


def _result(conn: Connection, process: ForkProcess) -> Any:
    try:
        answer = json.loads(conn.recv_bytes())
    except (EOFError, OSError):
        process.join()
        raise ClientError(
            f"a process of its own died ({process.exitcode}; out of memory?)"
        ) from None
    finally:
        conn.close()
    process.join()
    if "error" in answer:
        raise (UserError if answer["user"] else ClientError)(answer["error"])
    return answer["result"]


def _child(
    conn: Connection, inherited: list[Connection], work: Callable[[T], Any], item: T, parent: int
) -> None:
    become_child(parent, inherited)
    answer: dict[str, Any]
    try:
        answer = {"result": work(item)}
    except Exception as error:
        answer = {"error": str(error), "user": isinstance(error, UserError)}
    with contextlib.suppress(OSError):  # nobody is left to hear of it
        conn.send_bytes(json.dumps(answer).encode())
