"""Sites that go and come, certificates that end, and a server that is told to stop."""

from __future__ import annotations

import datetime
import ssl
import stat

from cryptography import x509

from federation import small
from federation.local_grid import grid_of
from federation.running import Running, until
from federation.small import history
from federation.test_commands import mistake, pgfed
from pgfed.cli.terminal.federation import look
from pgfed.federation.folders import keys
from pgfed.federation.folders.folder import FederationFolder
from pgfed.federation.server.conduct import Options, conduct
from pgfed.federation.site.answers import Site


def shown(federation: Running) -> str:
    """The certificate that the server shows now."""
    return ssl.get_server_certificate(("127.0.0.1", federation.folder.agreement.port))


def test_a_site_is_shut_out_and_let_in_again_while_the_server_runs(tmp_path, capsys, monkeypatch):
    with Running(tmp_path, cohort=1.0) as federation:
        place = federation.folder.path
        monkeypatch.setattr(keys, "YEARS", 29 / 365)  # of a certificate that ends soon
        assert pgfed(capsys, "renew-certificate", place)[0] == 0
        monkeypatch.undo()
        federation.site(1)
        federation.serve()
        assert "server.crt ends on 20" in federation.said("server")
        code, said = pgfed(capsys, "renew-certificate", place)
        assert (code, "the server knows" in said) == (0, True)
        assert shown(federation) == (federation.folder.server / "server.crt").read_text()
        until(lambda: "connected" in federation.said("site-1"), "it is there")
        mine = small.site_path(place, 1) / "site.pub"
        code, said = pgfed(capsys, "remove-site", place, "site-01")
        assert (code, "the server knows" in said) == (0, True)
        until(lambda: "this key is not admitted" in federation.said("site-1"), "it is shut out")
        admitted = look(federation.folder)["server"]["sites"]
        assert [site["name"] for site in admitted] == ["site-00", "site-02"]
        assert pgfed(capsys, "add-site", place, "site-01", "--key", mine)[0] == 0
        until(lambda: federation.said("site-1").count("connected") == 2, "it is let in")
        assert pgfed(capsys, "stop", place)[0] == 0
        assert federation.processes["server"].wait(60) == 0


def test_any_seat_may_be_empty_in_a_run(tmp_path, capsys):
    folder = small.make(tmp_path, cohort=1.0)
    assert pgfed(capsys, "remove-site", folder.path, "site-00")[0] == 0
    sites = [Site(small.site_folder(folder, i)) for i in range(small.SITES)]
    conduct(grid_of(sites), folder, Options(round_timeout=1.0))
    for record in history(folder, "pgfed"):
        assert [(d["client"], d["reason"]) for d in record["dropped"]] == [(0, "not connected")]
    assert look(folder)["run"]["state"] == "finished"
    assert not (sites[0].folder.models).exists()
    assert (sites[1].folder.models / "small" / "pgfed" / "seed-0" / "model.safetensors").is_file()


def test_mistakes_with_sites(tmp_path, capsys):
    folder = small.make(tmp_path)
    assert "site: found 'site-09'; allowed: site-00 to site-02" in mistake(
        capsys, "remove-site", folder.path, "site-09"
    )
    pub = folder.key(1)
    assert "has a key already" in mistake(
        capsys, "add-site", folder.path, "site-00", "--key", str(pub)
    )
    assert pgfed(capsys, "remove-site", folder.path, "site-00")[0] == 0
    assert "empty already" in mistake(capsys, "remove-site", folder.path, "site-00")
    assert "another site has this key: site-01" in mistake(
        capsys, "add-site", folder.path, "site-00", "--key", str(pub)
    )
    wrong = tmp_path / "wrong.pub"
    wrong.write_text("nonsense")
    said = mistake(capsys, "add-site", folder.path, "site-00", "--key", str(wrong))
    assert "not an OpenSSH public key" in said
    private = small.site_path(folder.path, 0) / "site.key"
    said = mistake(capsys, "add-site", folder.path, "site-00", "--key", str(private))
    assert "not an OpenSSH public key" in said
    assert not folder.key(0).exists()
    assert "the server does not answer" in mistake(capsys, "stop", folder.path)


def test_a_certificate_that_ends_is_warned_of_and_renewed(tmp_path, capsys, monkeypatch):
    folder = FederationFolder(small.make(tmp_path).path)
    assert keys.expiry_warning(folder) is None
    before = x509.load_pem_x509_certificate((folder.server / "server.crt").read_bytes())
    left = before.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    monkeypatch.setattr(keys, "WARNED", left.days + 2)  # as if it were that late
    warning = keys.expiry_warning(folder)
    assert warning is not None
    assert "server.crt ends on 20" in warning
    assert "renew-certificate" in warning
    assert warning in look(folder)["wrong"]
    monkeypatch.setattr(keys, "YEARS", -1 / (365 * 48))  # half an hour ago
    keys.make_server_key(folder.server, "x", ["127.0.0.1"])
    assert "server.crt ended on 20" in (keys.expiry_warning(folder) or "")
    assert pgfed(capsys, "renew-certificate", folder.path)[0] == 0
    after = x509.load_pem_x509_certificate((folder.server / "server.crt").read_bytes())
    assert after.serial_number != before.serial_number
    authority = x509.load_pem_x509_certificate((folder.server / "ca.crt").read_bytes())
    after.verify_directly_issued_by(authority)  # the sites' copy still does
    assert stat.S_IMODE((folder.server / "server.key").stat().st_mode) == 0o600
