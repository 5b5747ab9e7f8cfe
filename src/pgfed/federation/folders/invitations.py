"""Invitations: how a site gets a seat with a key that it made itself.

An invitation is one line for one seat: the server's address, the seat, the fingerprint of the
server's authority, and a secret. It ends by itself and admits one key. The server keeps a hash of
the secret, so that nobody can join with what lies in its folder.

    DIR/server/invitations/site-00.json
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pgfed.config.tables import check_folder
from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError
from pgfed.federation.folders.folder import (
    FederationFolder,
    is_loopback,
    split_address,
)
from pgfed.federation.folders.keys import load_public, public_line

PLAIN = "insecure"  # stands for the fingerprint where there is no TLS
_SECRET = r"[A-Za-z0-9_-]{43}"  # 32 bytes


@dataclass(frozen=True)
class Token:
    """What a site is given."""

    server: str
    site: str
    fingerprint: str  # of the authority's certificate
    secret: str

    def __str__(self) -> str:
        return "/".join((self.server, self.site, self.fingerprint, self.secret))

    @property
    def url(self) -> str:
        return f"{'http' if self.fingerprint == PLAIN else 'https'}://{self.server}"


def read_token(text: str) -> Token:
    """The inverse of `str`; what is not an invitation is refused."""
    parts = text.strip().split("/")
    if len(parts) != 4:
        raise UserError("invitation: allowed: the one line that `pgfed federation invite` printed")
    token = Token(*parts)
    host, _ = split_address(token.server)
    known = token.fingerprint == PLAIN or re.fullmatch(_SECRET, token.fingerprint)
    if not (known and re.fullmatch(_SECRET, token.secret)):
        raise UserError("invitation: it is not whole; copy the line as `invite` printed it")
    check_folder("invitation", token.site)
    if token.fingerprint == PLAIN and not is_loopback(host):
        raise UserError(f"invitation: without TLS, and {host} is another machine; refused")
    return token


def first_certificate(pem: bytes) -> bytes:
    """The one whose `fingerprint` it is, and nothing else: all that is there would be trusted."""
    return _certificate(pem).public_bytes(serialization.Encoding.PEM)


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in PEM, as invitations have it."""
    return _text(_certificate(certificate).fingerprint(hashes.SHA256()))


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise UserError(f"the authority's certificate: {error}") from None


def key_name(key: ec.EllipticCurvePublicKey) -> str:
    """By which people compare keys, as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(public_line(key).split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


# -- at the server -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Invitation:
    """What the server keeps of one."""

    site: str
    hash: str  # of the secret
    ends: float  # by the clock
    key: str = ""  # the one that has used it

    @property
    def left(self) -> float:
        """Seconds."""
        return self.ends - time.time()


def secret_hash(secret: str) -> str:
    return hashlib.sha256(b"pgfed invitation " + secret.encode()).hexdigest()


def invite(folder: FederationFolder, client: int, hours: float) -> Token:
    """A new invitation to this seat; an older one to it is void."""
    agreement = folder.agreement
    name = agreement.names[client]
    if folder.key(client).is_file():
        raise UserError(f"{name}: has a key already; `remove-site` takes it away")
    secret = _text(secrets.token_bytes(32))
    authority = (folder.server / "ca.crt").read_bytes()
    known = PLAIN if agreement.insecure else fingerprint(authority)
    keep(folder, Invitation(name, secret_hash(secret), time.time() + 3600 * hours))
    return Token(agreement.server, name, known, secret)


def keep(folder: FederationFolder, invitation: Invitation) -> None:
    path = _path(folder, invitation.site)
    path.parent.mkdir(exist_ok=True, mode=0o700)
    write_atomic(path, json.dumps(asdict(invitation)) + "\n")


def withdraw(folder: FederationFolder, name: str) -> bool:
    """Whether there was one."""
    path = _path(folder, name)
    known = path.is_file()
    path.unlink(missing_ok=True)
    return known


def check_new(folder: FederationFolder, name: str, key: ec.EllipticCurvePublicKey) -> None:
    """Two seats with one key would be nobody's."""
    agreement = folder.agreement
    for client, other in enumerate(agreement.names):
        file = folder.key(client)
        if other != name and file.is_file() and key_name(load_public(file)) == key_name(key):
            raise UserError(f"another site has this key: {other}")


def invitations(folder: FederationFolder) -> dict[str, Invitation]:
    """Those that have not ended, by the hash of their secret."""
    found = {}
    for path in sorted(_path(folder, "x").parent.glob("*.json")):
        try:
            invitation = Invitation(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            raise UserError(f"{path}: not an invitation; remove it, and invite again") from None
        if invitation.left > 0:
            found[invitation.hash] = invitation
    return found


def first_empty(folder: FederationFolder) -> int:
    """A seat that has neither a key nor an invitation."""
    invited = {invitation.site for invitation in invitations(folder).values()}
    seats = folder.agreement.seats
    for client, name in enumerate(folder.agreement.names):
        if not folder.key(client).is_file() and name not in invited:
            return client
    raise UserError(
        f"{folder.path}: all {seats} seats are taken or invited; `add-seats` makes more, or name "
        "the seat that is to be invited anew"
    )


def _path(folder: FederationFolder, name: str) -> Path:
    return folder.server / "invitations" / f"{name}.json"


# -- the site's proof --------------------------------------------------------------------------


def prove(key: ec.EllipticCurvePrivateKey, secret: str) -> bytes:
    """That whoever joins holds the private key, and that this is no older invitation."""
    return key.sign(_proof(secret), ec.ECDSA(hashes.SHA384()))


def redeem(
    invitation: Invitation, secret: str, public: bytes, proof: bytes
) -> tuple[Invitation, ec.EllipticCurvePublicKey]:
    """The invitation as used by this key, and the key; ValueError if it may not use it."""
    try:
        key = serialization.load_ssh_public_key(public)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise ValueError("not a P-384 key")
    try:
        key.verify(proof, _proof(secret), ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        raise ValueError("the key's proof is wrong") from None
    # The same key may come again: the answer to its first request was lost.
    if invitation.key not in ("", key_name(key)):
        raise ValueError("this invitation was used, by another key")
    return replace(invitation, key=key_name(key)), key


def _proof(secret: str) -> bytes:
    return f"pgfed join 1\n{secret_hash(secret)}\n".encode()
