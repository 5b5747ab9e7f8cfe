"""Certificates and keys of a federation, and the proof that a site is who it says it is.

Every site holds a P-384 key. Flower admits a node by it; beyond that each site signs, for every
run, that this node is this client. The server compares with the public keys that `federation init`
wrote down: which client a node speaks for never depends on what the node says.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError
from pgfed.federation.folders.folder import FederationFolder

WARNED = 30  # days before a certificate ends
YEARS = 10  # of the authority and of the server's certificate
_HASH = hashes.SHA384()
_PEM = serialization.Encoding.PEM


def write_private(path: Path, data: bytes) -> None:
    """A file that only its owner may read, from the moment it is there."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def make_authority(folder: Path, name: str, hosts: list[str]) -> None:
    """ca.key, ca.crt, and the server's key and certificate for these names and addresses."""
    authority = ec.generate_private_key(ec.SECP384R1())
    issuer = _name(f"{name} authority")
    ca = _certificate(issuer, issuer, authority.public_key())
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca = ca.add_extension(_usage(signs_certificates=True), critical=True)
    write_private(folder / "ca.key", _private(authority, serialization.PrivateFormat.PKCS8))
    write_atomic(folder / "ca.crt", _signed(ca, authority))
    make_server_key(folder, name, hosts)


def make_server_key(folder: Path, name: str, hosts: list[str]) -> None:
    """A new key and certificate for the server, from the authority in its folder."""
    path = folder / "ca.key"
    try:
        authority = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: not a private key: {error}") from None
    if not isinstance(authority, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path}: not an ECDSA key")
    server = ec.generate_private_key(ec.SECP384R1())
    leaf = _certificate(_name(f"{name} authority"), _name(f"{name} server"), server.public_key())
    leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    leaf = leaf.add_extension(_usage(signs_certificates=False), critical=True)
    leaf = leaf.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
    )
    leaf = leaf.add_extension(
        x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False
    )
    new = folder / "server.key.new"
    new.unlink(missing_ok=True)
    write_private(new, _private(server, serialization.PrivateFormat.PKCS8))
    new.replace(folder / "server.key")
    write_atomic(folder / "server.crt", _signed(leaf, authority))


def _signed(builder: x509.CertificateBuilder, authority: ec.EllipticCurvePrivateKey) -> bytes:
    signed = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
        critical=False,
    ).sign(authority, _HASH)
    return signed.public_bytes(_PEM)


def expiry_warning(folder: FederationFolder) -> str | None:
    """What to do about certificates that end within a month, if any do."""
    if folder.agreement.insecure:
        return None
    now = datetime.datetime.now(datetime.UTC)
    cures = (
        ("server.crt", f"`pgfed federation renew-certificate {folder.path}`"),
        ("ca.crt", "make a new federation: all sites need its certificate"),
    )
    for file, cure in cures:
        path = folder.server / file
        try:
            end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from None
        if end - now < datetime.timedelta(days=WARNED):
            verb = "ended" if end < now else "ends"
            return f"{path} {verb} on {end:%Y-%m-%d}: {cure}"
    return None


def make_site_key(private: Path, public: Path, comment: str) -> None:
    """A key pair in OpenSSH's format, as `ssh-keygen -t ecdsa -b 384` makes it."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(private, _private(key, serialization.PrivateFormat.OpenSSH))
    write_atomic(public, public_line(key.public_key(), comment))


def load_private(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path}: not an OpenSSH private key without passphrase: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path}: not an ECDSA key; make one with ssh-keygen -t ecdsa -b 384")
    return key


def load_public(path: Path) -> ec.EllipticCurvePublicKey:
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, UnsupportedAlgorithm) as error:  # the latter also for a private one
        raise UserError(f"{path}: not an OpenSSH public key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"{path}: not an ECDSA key; make one with ssh-keygen -t ecdsa -b 384")
    return key


def public_line(key: ec.EllipticCurvePublicKey, comment: str = "") -> bytes:
    """As OpenSSH writes it."""
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return line + f" {comment}\n".encode()


def public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    """As Flower's clients send it."""
    return key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


# -- who a node is -----------------------------------------------------------------------------


def sign_claim(
    key: ec.EllipticCurvePrivateKey, client: int, node: int, run: str, nonce: str
) -> bytes:
    """A site's word that in this run, this node is this client."""
    return key.sign(_claim(client, node, run, nonce), ec.ECDSA(_HASH))


def holds_claim(
    key: ec.EllipticCurvePublicKey, signature: bytes, client: int, node: int, run: str, nonce: str
) -> bool:
    try:
        key.verify(signature, _claim(client, node, run, nonce), ec.ECDSA(_HASH))
    except InvalidSignature:
        return False
    return True


def _claim(client: int, node: int, run: str, nonce: str) -> bytes:
    return f"pgfed claim 1\nclient {client}\nnode {node}\nrun {run}\nnonce {nonce}\n".encode()


# -- certificates ------------------------------------------------------------------------------


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _certificate(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # Clocks of sites differ a little.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(_PEM, form, serialization.NoEncryption())
