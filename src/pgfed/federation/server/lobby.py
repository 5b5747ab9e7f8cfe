"""Where a site that has no key here yet is met, on the same port as all others.

    GET  /v1/pgfed/authority   the authority's certificate; the site knows its fingerprint
    POST /v1/pgfed/join        with an invitation's secret: take a key in
    POST /v1/pgfed/agreement   signed by a site's key: what is agreed on, and the experiment

The first two are there only while an invitation is open: without one a stranger finds nothing. The
secret stands in a header and is looked up before the body is read; who shows wrong ones is not
listened to for a while. The third goes through the guard, as all that sites ask for.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric import ec

from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError, one_line
from pgfed.federation.flower.guard import (
    AGREEMENT,
    Receive,
    Refusal,
    Scope,
    Send,
    length,
    respond,
)
from pgfed.federation.folders.folder import FederationFolder
from pgfed.federation.folders.invitations import (
    Invitation,
    check_new,
    invitations,
    keep,
    redeem,
    secret_hash,
)
from pgfed.federation.folders.keys import public_line
from pgfed.federation.folders.making import handed

LONGEST = 4096  # bytes of a request to join
WRONG = 5  # secrets that one address may try
PAUSE = 60.0  # seconds after which it may try again
ADDRESSES = 1024  # that are remembered
SECRET = b"pgfed-invitation"

log = logging.getLogger(__name__)


class Lobby:
    """An ASGI app; ``joined``: told that there is a new key in the folder."""

    def __init__(self, joined: Callable[[], object]) -> None:
        self._joined = joined
        self._folder: FederationFolder
        self._open: dict[str, Invitation] = {}  # by the hash of their secret
        self._wrong: dict[str, tuple[int, float]] = {}  # address -> how many, since when

    def look(self, folder: FederationFolder) -> None:
        """What is agreed on, and who is invited, now."""
        self._folder, self._open = folder, invitations(folder)

    @property
    def invited(self) -> dict[str, int]:
        """Seats that wait for somebody to join, and for how many more seconds."""
        waiting = (i for i in self._open.values() if not i.key and i.left > 0)
        return {invitation.site: round(invitation.left) for invitation in waiting}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if path == AGREEMENT:
            await respond(send, 200, self._content(scope["seat"]))
            return
        self._open = {key: each for key, each in self._open.items() if each.left > 0}
        if not self._open:
            raise Refusal(404, "nothing here")
        if (method, path) == ("GET", "/v1/pgfed/authority"):
            await respond(send, 200, (self._folder.server / "ca.crt").read_bytes())
        elif (method, path) == ("POST", "/v1/pgfed/join"):
            await respond(send, 200, await self._join(scope, receive))
        else:
            raise Refusal(404, "nothing here")

    async def _join(self, scope: Scope, receive: Receive) -> bytes:
        address = scope["client"][0] if scope.get("client") else ""
        self._check_patience(address)
        secret = dict(scope["headers"]).get(SECRET, b"").decode("ascii", "replace")
        self._invitation(secret, address)
        if length(scope) > LONGEST:
            raise Refusal(413, f"allowed: {LONGEST} bytes")
        body = await _body(receive)
        invitation = self._invitation(secret, address)  # another may have used it meanwhile
        try:
            content = json.loads(body)
            public, proof = content["key"].encode("ascii"), base64.b64decode(content["proof"])
            used, key = redeem(invitation, secret, public, proof)
            check_new(self._folder, used.site, key)
        except (
            UserError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            why = one_line(str(error))
            log.warning("%s, joining from %s, refused: %s", invitation.site, address, why)
            raise Refusal(403, why) from None
        return self._take_in(used, key, address)

    def _invitation(self, secret: str, address: str) -> Invitation:
        found = self._open.get(secret_hash(secret))
        if found is None or found.left <= 0:
            self._count_wrong(address)
            raise Refusal(401, "no such invitation: it has ended, was withdrawn, or never was")
        return found

    def _take_in(self, used: Invitation, key: ec.EllipticCurvePublicKey, address: str) -> bytes:
        seat = self._folder.seat(used.site)
        if self._open[used.hash] != used:
            keep(self._folder, used)  # first: from now on no other key can use it
            self._open[used.hash] = used
            write_atomic(self._folder.key(seat), public_line(key, used.site))
            self._joined()
            log.info("%s joined from %s with the key %s", used.site, address, used.key)
        return self._content(seat)

    def _content(self, seat: int) -> bytes:
        return json.dumps(handed(self._folder, seat)).encode()

    # -- those who guess -----------------------------------------------------------------------

    def _check_patience(self, address: str) -> None:
        wrong, since = self._wrong.get(address, (0, 0.0))
        if time.monotonic() - since > PAUSE:
            self._wrong.pop(address, None)
        elif wrong >= WRONG:
            raise Refusal(429, f"{wrong} wrong invitations; wait a minute")

    def _count_wrong(self, address: str) -> None:
        wrong, _ = self._wrong.pop(address, (0, 0.0))
        self._wrong[address] = (wrong + 1, time.monotonic())
        if wrong + 1 == WRONG:
            log.warning("%s showed %d wrong invitations; it has to wait", address, WRONG)
        while len(self._wrong) > ADDRESSES:
            del self._wrong[next(iter(self._wrong))]


async def _body(receive: Receive) -> bytes:
    """All of it: the gate gives a stranger ten seconds, and the length is known to be small."""
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return body
