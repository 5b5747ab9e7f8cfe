"""Where the parts of messages lie at the server."""

from __future__ import annotations

import threading
from collections.abc import Iterable


class Shelf:
    """The objects of messages: an object lies here as long as a message holds it.

    What a message holds is a plain set: a tree that names one object a million times costs nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held: dict[str, set[str]] = {}  # message -> its objects
        self._content: dict[str, bytes] = {}  # object -> bytes; empty until it has come
        self._holders: dict[str, set[str]] = {}

    def announce(self, message: str, objects: Iterable[str]) -> list[str]:
        """Make places for a message's objects; those that have not come yet."""
        with self._lock:
            held = self._held.setdefault(message, set(objects))
            for name in held:
                self._content.setdefault(name, b"")
                self._holders.setdefault(name, set()).add(message)
            return [name for name in held if not self._content[name]]

    def put(self, name: str, content: bytes) -> None:
        with self._lock:
            if name not in self._content:
                raise KeyError(f"{name} was not announced")
            self._content[name] = self._content[name] or content

    def get(self, name: str) -> bytes | None:
        return self._content.get(name)

    def drop(self, message: str) -> None:
        with self._lock:
            for name in self._held.pop(message, set()):
                self._holders[name].discard(message)
                if not self._holders[name]:
                    del self._holders[name], self._content[name]

    def clear(self) -> None:
        with self._lock:
            for message in list(self._held):
                self.drop(message)

    def __len__(self) -> int:
        return len(self._content)
