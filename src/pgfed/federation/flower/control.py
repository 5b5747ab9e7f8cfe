"""The server's SuperLink, asked from its own machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pgfed.errors import UserError
from pgfed.federation.flower.private import ControlClient
from pgfed.federation.folders.folder import FederationFolder
from pgfed.federation.folders.keys import load_public


class Control:
    """Registers sites, starts runs, and tells how they stand."""

    def __init__(self, folder: FederationFolder) -> None:
        self._folder = folder
        self._client = ControlClient(
            folder.address, insecure=folder.agreement.insecure, authority=folder.authority
        )

    def is_up(self) -> bool:
        try:
            self._client.nodes()
        except httpx.HTTPError:
            return False
        return True

    def register_sites(self) -> None:
        """Admit the keys in the federation's folder, and no others."""
        seats = range(self._folder.agreement.seats)
        wanted = {
            load_public(self._folder.key(i)).public_bytes(
                Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
            )
            for i in seats
        }
        with self._asking():
            nodes = self._client.nodes()
            present = {node.public_key: node.node_id for node in nodes if not node.unregistered_at}
            for key in wanted - set(present):
                self._client.register(key)
            for key in set(present) - wanted:
                self._client.unregister(present[key])

    def start(self, options: dict[str, Any]) -> int:
        """Start the app with these options; the number of Flower's run."""
        with self._asking():
            self._client.nodes()  # is it there at all?
            return self._client.start(self._folder.app, options)

    def state(self, run: int) -> str:
        """pending, starting, running, or finished:..."""
        with self._asking():
            return self._client.state(run)

    def online(self) -> int:
        """How many nodes are connected."""
        with self._asking():
            return sum(node.status == "online" for node in self._client.nodes())

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPStatusError as error:
            raise UserError(
                f"{self._folder.address}: the server refused ({error.response.text[:300]})"
            ) from None
        except httpx.HTTPError as error:
            raise UserError(
                f"{self._folder.address}: the server does not answer ({error}); is `pgfed "
                f"federation server {self._folder.path}` running?"
            ) from None

    def close(self) -> None:
        self._client.close()
