"""Certificates, keys, and claims to a seat."""

from __future__ import annotations

import ssl
import stat

import pytest
from cryptography import x509

from pgfed.errors import UserError
from pgfed.federation.folders import keys


@pytest.fixture
def pair(tmp_path):
    keys.make_site_key(tmp_path / "site.key", tmp_path / "site.pub", "site-00")
    return keys.load_private(tmp_path / "site.key"), keys.load_public(tmp_path / "site.pub")


CLAIM = {"client": 1, "node": 77, "run": "ab", "nonce": "cd"}


def test_a_claim_holds_for_its_key_only(pair, tmp_path):
    private, public = pair
    signature = keys.sign_claim(private, **CLAIM)
    assert keys.holds_claim(public, signature, **CLAIM)
    keys.make_site_key(tmp_path / "other.key", tmp_path / "other.pub", "site-01")
    assert not keys.holds_claim(keys.load_public(tmp_path / "other.pub"), signature, **CLAIM)


@pytest.mark.parametrize(
    "change", [{"client": 2}, {"node": 78}, {"run": "abc"}, {"nonce": "c"}, {"nonce": "cd\nx"}]
)
def test_a_claim_cannot_be_used_for_anything_else(pair, change):
    private, public = pair
    signature = keys.sign_claim(private, **CLAIM)
    assert not keys.holds_claim(public, signature, **{**CLAIM, **change})
    assert not keys.holds_claim(public, b"", **CLAIM)


def test_private_files_are_private_and_never_overwritten(tmp_path):
    keys.make_site_key(tmp_path / "site.key", tmp_path / "site.pub", "x")
    assert stat.S_IMODE((tmp_path / "site.key").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        keys.make_site_key(tmp_path / "site.key", tmp_path / "site.pub", "x")


def test_the_server_certificate_is_signed_for_its_hosts(tmp_path):
    keys.make_authority(tmp_path, "f", ["fed.example.org", "10.1.2.3"])
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    (certificate,) = context.get_ca_certs()
    assert certificate["subject"] == ((("commonName", "f authority"),),)
    server = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3"]
    for secret in ("ca.key", "server.key"):
        assert stat.S_IMODE((tmp_path / secret).stat().st_mode) == 0o600


def test_files_that_are_no_keys(tmp_path):
    path = tmp_path / "site.key"
    for load in (keys.load_private, keys.load_public):
        with pytest.raises(UserError, match=r"site\.key: cannot be read"):
            load(path)
    path.write_text("nonsense")
    for load in (keys.load_private, keys.load_public):
        with pytest.raises(UserError, match=r"site\.key: not an OpenSSH"):
            load(path)
