"""The server's SuperLink, asked from its own machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from pgfed.engine.durable import sha256
from pgfed.errors import UserError
from pgfed.federation.folders.folder import FederationFolder
from pgfed.federation.folders.keys import load_public


class Control:
    """Registers sites, starts runs, and tells how they stand."""

    def __init__(self, folder: FederationFolder) -> None:
        self._folder = folder
        self._client = ControlHttpClient.from_server_address(
            server_address=folder.address,
            insecure=folder.agreement.insecure,
            root_certificates=folder.authority,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="pgfed")],
        )

    def is_up(self) -> bool:
        try:
            self._client.ListNodes(ListNodesRequest())
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
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
            present = {node.public_key: node.node_id for node in nodes if not node.unregistered_at}
            for key in wanted - set(present):
                self._client.RegisterNode(RegisterNodeRequest(public_key=key))
            for key in set(present) - wanted:
                self._client.UnregisterNode(UnregisterNodeRequest(node_id=present[key]))

    def start(self, options: dict[str, Any]) -> int:
        """Start the app with these options; the number of Flower's run."""
        from flwr.cli.build import build_fab_from_disk

        with self._asking():
            self._client.ListNodes(ListNodesRequest())  # is it there at all?
            bundle = build_fab_from_disk(self._folder.app)
            started = self._client.StartRun(
                StartRunRequest(
                    fab=fab_to_proto(Fab(sha256(bundle), bundle, {})),
                    override_config=user_config_to_proto(options),
                    federation="",
                )
            )
        return int(started.run_id)

    def state(self, run: int) -> str:
        """pending, starting, running, or finished:..."""
        with self._asking():
            listed = self._client.ListRuns(ListRunsRequest(run_id=run))
        status = listed.run_dict[run].status
        return f"{status.status}:{status.sub_status}" if status.sub_status else str(status.status)

    def online(self) -> int:
        """How many nodes are connected."""
        with self._asking():
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        return sum(node.status == "online" for node in nodes)

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
