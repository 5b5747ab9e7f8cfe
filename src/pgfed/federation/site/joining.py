"""A site joins with a key that it makes here, and fetches what the server would have it agree to.

The server is known by the fingerprint of its authority, which stands in the invitation: first the
authority's certificate is fetched and compared, then a connection is made that only a server with
a certificate of that authority can answer. The secret is shown on that one alone.
"""

from __future__ import annotations

import base64
import json
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError, one_line
from pgfed.federation.flower.guard import AGREEMENT, OURS
from pgfed.federation.flower.private import KEY, SIGNATURE, STAMP
from pgfed.federation.folders.folder import SiteFolder
from pgfed.federation.folders.invitations import (
    PLAIN,
    Token,
    fingerprint,
    first_certificate,
    key_name,
    prove,
)
from pgfed.federation.folders.keys import load_private, make_site_key, public_line, public_pem
from pgfed.federation.folders.making import write_site

PATIENCE = 30.0  # seconds for an answer
LONGEST = 4_000_000  # bytes of one
NEW = "site.key.new"  # a key with which this folder has not joined yet


def join(path: Path, token: Token) -> str:
    """Take the seat of the invitation; the name of the key, as the server's log has it."""
    _check_place(path, token)
    authority = first_certificate(_ask("GET", f"{token.url}{OURS}authority", None))
    if token.fingerprint not in (PLAIN, fingerprint(authority)):
        raise UserError(
            f"{token.server}: its authority is not the one of the invitation; somebody else "
            "answers in its place, or it is another federation's"
        )
    path.mkdir(parents=True, exist_ok=True)
    new = path / NEW
    if not new.is_file():  # else an answer was lost: the key may be known to the server
        make_site_key(new, path / f"{NEW}.pub", token.site)
    key = load_private(new)
    public = public_line(key.public_key(), token.site)
    content = _read(
        _ask(
            "POST",
            f"{token.url}{OURS}join",
            _context(authority),
            headers={"pgfed-invitation": token.secret},
            json={
                "key": public.decode(),
                "proof": base64.b64encode(prove(key, token.secret)).decode(),
            },
        )
    )
    write_site(path, content, authority)
    write_atomic(path / "site.pub", public)
    (path / f"{NEW}.pub").unlink(missing_ok=True)
    new.replace(path / "site.key")
    return key_name(key.public_key())


def fetch(folder: SiteFolder) -> list[str]:
    """Take over what the server has now; what of it is new here."""
    key = load_private(folder.key)
    stamp = datetime.now(UTC).isoformat()
    signature = key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    headers = {
        KEY.decode(): base64.b64encode(public_pem(key.public_key())).decode(),
        STAMP.decode(): stamp,
        SIGNATURE.decode(): base64.b64encode(signature).decode(),
        "content-length": "0",
    }
    authority = folder.authority.read_bytes()
    scheme = "http" if folder.file.insecure else "https"
    url = f"{scheme}://{folder.file.server}{AGREEMENT}"
    content = _read(_ask("POST", url, _context(authority), headers=headers))
    if content["client"] != folder.file.client:
        raise UserError(f"{folder.file.server}: answers for another seat")
    files = [folder.path / name for name in ("site.toml", "experiment.toml", "schema.toml")]
    before = [_text(file) for file in files]
    write_site(folder.path, content, authority)
    return [file.name for file, old in zip(files, before, strict=True) if _text(file) != old]


def _check_place(path: Path, token: Token) -> None:
    """A new folder; or the same site's, which gets a new key."""
    if not path.exists() or (path / NEW).is_file():
        return
    if (path / "site.toml").is_file():
        file = SiteFolder(path).file
        if file.names[file.client] == token.site:
            return
        raise UserError(f"{path}: is another site's folder; the invitation is for {token.site}")
    if not path.is_dir() or any(path.iterdir()):
        raise UserError(f"{path}: exists and is not empty; give a new folder")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


# -- asking the server -------------------------------------------------------------------------


def _context(authority: bytes) -> ssl.SSLContext:
    """Trusts this authority and nobody else."""
    context = ssl.create_default_context(cadata=authority.decode("ascii"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _anybody() -> ssl.SSLContext:
    """For the one request whose answer is compared with a fingerprint."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _ask(method: str, url: str, context: ssl.SSLContext | None, **more: Any) -> bytes:
    server = httpx.URL(url).netloc.decode()
    verify = context or _anybody()
    try:
        with (
            httpx.Client(verify=verify, timeout=PATIENCE, trust_env=False) as client,
            client.stream(method, url, **more) as answer,
        ):
            body = b""
            for part in answer.iter_bytes():
                body += part
                if len(body) > LONGEST:
                    raise UserError(f"{server}: answers with more than {LONGEST} bytes")
    except httpx.HTTPError as error:
        why = one_line(str(error) or type(error).__name__)
        raise UserError(f"{server}: cannot be reached ({why})") from None
    if answer.status_code == httpx.codes.NOT_FOUND:
        raise UserError(f"{server}: no invitation is open there; ask for a new one")
    if answer.status_code != httpx.codes.OK:
        said = one_line(body.decode(errors="replace").strip()[:300])
        raise UserError(f"{server}: refuses ({answer.status_code}): {said}")
    return body


def _read(body: bytes) -> dict[str, Any]:
    """What `making.handed` made, in form; what it means is checked where it is written."""
    try:
        content = json.loads(body)
        schema = content["schema"]
        sound = isinstance(content["experiment"], str) and isinstance(schema, str | None)
        if sound and type(content["client"]) is int and isinstance(content["agreement"], dict):
            return dict(content)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UserError("what the server handed out is not what a site is given")
