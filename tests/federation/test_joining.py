"""A site joins with a key of its own making; seats are added; what is agreed on is fetched."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import stat
import subprocess
import threading
import time
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from federation import small
from federation.local_grid import grid_of
from federation.running import PGFED, Running, free_port, until
from federation.test_commands import mistake, pgfed
from federation.test_strangers import context, encrypted, said
from pgfed.errors import UserError
from pgfed.federation.folders import invitations, making
from pgfed.federation.folders.folder import FederationFolder, SiteFolder, digest, load_experiment
from pgfed.federation.folders.invitations import Token, prove, read_token
from pgfed.federation.folders.keys import (
    load_private,
    load_public,
    make_authority,
    make_site_key,
)
from pgfed.federation.server import lobby
from pgfed.federation.server.conduct import Options, conduct
from pgfed.federation.site import joining
from pgfed.federation.site.answers import Site


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A server with five empty seats, as `init` makes it."""
    place = tmp_path_factory.mktemp("joining")
    federation = Running.__new__(Running)
    federation.path, federation.processes = place, {}
    making.init(
        place / "federation",
        sites=5,
        experiment=None,
        server=f"127.0.0.1:{free_port()}",
        classes=None,
        shape=None,
        insecure=False,
    )
    federation.folder = FederationFolder(place / "federation")
    with federation:
        federation.serve()
        yield federation


def invited(running, capsys, name: str) -> Token:
    capsys.readouterr()
    code, said = pgfed(capsys, "invite", running.folder.path, name)
    assert code == 0, said
    assert "the server knows" in said
    return read_token(said.splitlines()[0])


def post(running, path: str, **more) -> httpx.Response:
    with httpx.Client(verify=context(running)) as client:
        return client.post(f"https://{running.folder.agreement.server}/v1/pgfed/{path}", **more)


def shown(token: Token) -> dict[str, str]:
    return {"pgfed-invitation": token.secret}


# -- joining -----------------------------------------------------------------------------------


def test_no_private_key_of_a_site_is_at_the_server(running):
    keys = {path.name for path in running.folder.path.rglob("*.key")}
    assert keys == {"ca.key", "server.key"}
    assert not (running.folder.path / "sites").exists()


def test_without_an_invitation_nothing_is_there(running):
    assert [post(running, path).status_code for path in ("join", "authority", "x")] == [404] * 3
    assert post(running, "agreement").status_code == 401


def test_a_site_joins_and_is_let_in_at_once(running, capsys, tmp_path):
    token = invited(running, capsys, "site-00")
    kept = (running.folder.server / "invitations" / "site-00.json").read_text()
    assert token.secret not in kept
    status = json.loads(pgfed(capsys, "status", running.folder.path, "--json")[1])
    assert 86_000 < status["server"]["invited"]["site-00"] <= 86_400
    done = subprocess.run(
        [*PGFED, "join", str(tmp_path / "s")], input=f"{token}\n", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    site = SiteFolder(tmp_path / "s")
    assert {p.name for p in site.path.iterdir()} == {
        *("site.toml", "site.key", "site.pub", "experiment.toml", "ca.crt", "start.sh"),
        "pgfed-site.service",
    }
    assert stat.S_IMODE(site.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(site.key.stat().st_mode) == 0o600
    assert running.folder.key(0).read_bytes() == (site.path / "site.pub").read_bytes()
    theirs = load_experiment(running.folder.experiment_file)[0]
    assert digest(site.file, load_experiment(site.experiment_file)[0]) == digest(
        running.folder.agreement, theirs
    )
    assert "site-00 joined from 127.0.0.1 with the key SHA256:" in running.said("server")
    assert invitations.key_name(load_private(site.key).public_key()) in done.stdout
    # No server has to be started anew for it.
    assert joining.fetch(site) == []
    assert "has a key already" in mistake(capsys, "invite", running.folder.path, "site-00")


def test_an_invitation_admits_one_key_and_the_same_one_again(running, capsys, tmp_path):
    """Its answer may be lost; somebody else who has read it comes too late."""
    token = invited(running, capsys, "site-01")
    joining.join(tmp_path / "first", token)
    with pytest.raises(UserError, match=r"refuses \(403\): this invitation was used, by another"):
        joining.join(tmp_path / "thief", token)
    # As if the answer had been lost: the key is there, the rest is not.
    lost = tmp_path / "first"
    (lost / "site.key").rename(lost / joining.NEW)
    (lost / "site.toml").unlink()
    joining.join(lost, token)
    assert joining.fetch(SiteFolder(lost)) == []
    assert running.said("server").count("site-01 joined") == 1


def test_the_same_key_does_not_get_two_seats(running, capsys, tmp_path):
    token = invited(running, capsys, "site-02")
    (tmp_path / "again").mkdir()
    other = load_key_of(running, capsys, tmp_path)
    (tmp_path / "again" / joining.NEW).write_bytes(other)
    (tmp_path / "again" / joining.NEW).chmod(0o600)
    with pytest.raises(UserError, match="another site has this key"):
        joining.join(tmp_path / "again", token)
    assert not running.folder.key(2).exists()


def test_who_shows_an_invitation_first_and_a_key_last_does_not_get_the_seat(
    running, capsys, tmp_path
):
    """A thief keeps his request open until the site has joined."""
    token = invited(running, capsys, "site-04")
    make_site_key(tmp_path / "his", tmp_path / "his.pub", "thief")
    body = {
        "key": (tmp_path / "his.pub").read_text(),
        "proof": base64.b64encode(prove(load_private(tmp_path / "his"), token.secret)).decode(),
    }
    sent = json.dumps(body).encode()
    head = f"POST /v1/pgfed/join HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}\r\n"
    with encrypted(running) as thief:
        thief.sendall(f"{head}pgfed-invitation: {token.secret}\r\n\r\n".encode())
        joining.join(tmp_path / "site", token)
        thief.sendall(sent)
        answer = said(thief)
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"was used, by another key" in answer
    mine = load_public(tmp_path / "site" / "site.pub").public_numbers()
    assert load_public(running.folder.key(4)).public_numbers() == mine
    pgfed(capsys, "remove-site", running.folder.path, "site-04")


def load_key_of(running, capsys, tmp_path) -> bytes:
    """The private key of a site that has joined at seat 3."""
    joining.join(tmp_path / "three", invited(running, capsys, "site-03"))
    return (tmp_path / "three" / "site.key").read_bytes()


def test_another_servers_authority_is_noticed_before_the_secret_is_shown(
    running, capsys, tmp_path, monkeypatch
):
    token = invited(running, capsys, "site-02")
    told = running.said("server").count("site-02")
    make_authority(tmp_path, "other", ["127.0.0.1"])
    wrong = invitations.fingerprint((tmp_path / "ca.crt").read_bytes())
    asked = []
    honest = joining._ask
    monkeypatch.setattr(joining, "_ask", lambda *w, **k: asked.append(w[1]) or honest(*w, **k))
    with pytest.raises(UserError, match="its authority is not the one of the invitation"):
        joining.join(tmp_path / "s", Token(token.server, token.site, wrong, token.secret))
    assert [url.rpartition("/")[2] for url in asked] == ["authority"]
    assert not (tmp_path / "s").exists()
    # Its certificate shown by somebody who does not hold its key: no connection is made.
    monkeypatch.setattr(
        joining, "_ask",
        lambda m, url, c, **k: (tmp_path / "ca.crt").read_bytes() if m == "GET" else honest(
            m, url, c, **k),
    )  # fmt: skip
    with pytest.raises(UserError, match="certificate verify failed"):
        joining.join(tmp_path / "s", Token(token.server, token.site, wrong, token.secret))
    assert running.said("server").count("site-02") == told  # it was asked for nothing


def test_a_second_authority_behind_the_right_one_is_not_trusted(tmp_path):
    """Somebody in the middle shows the server's certificate, which is no secret, and then his."""
    right, his = tmp_path / "right", tmp_path / "his"
    for place in (right, his):
        place.mkdir()
        make_authority(place, place.name, ["127.0.0.1"])
    both = (right / "ca.crt").read_bytes() + (his / "ca.crt").read_bytes()
    seen: list[str] = []

    class Middle(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(both)

        def do_POST(self) -> None:
            seen.append(self.headers["pgfed-invitation"])

        def log_message(self, *_: object) -> None:
            pass

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(his / "server.crt", his / "server.key")
    with HTTPServer(("127.0.0.1", 0), Middle) as middle:
        middle.socket = tls.wrap_socket(middle.socket, server_side=True)
        threading.Thread(target=middle.serve_forever, daemon=True).start()
        known = invitations.fingerprint((right / "ca.crt").read_bytes())
        server = f"127.0.0.1:{middle.server_port}"
        with pytest.raises(UserError, match="certificate verify failed"):
            joining.join(tmp_path / "site", Token(server, "site-00", known, "s" * 43))
        middle.shutdown()
    assert not seen


def test_bad_requests_to_join_are_refused(running, capsys, tmp_path):
    token = invited(running, capsys, "site-02")
    assert post(running, "join", headers=shown(token), content=b"x" * 5000).status_code == 413
    for body in (b"", b"[" * 4000, b"{}", b'{"key": "ssh-ed25519 AAAA", "proof": ""}', b"\xff"):
        assert post(running, "join", headers=shown(token), content=body).status_code == 403
    joining.make_site_key(tmp_path / "k", tmp_path / "k.pub", "x")
    body = {"key": (tmp_path / "k.pub").read_text(), "proof": "AAAA"}
    answer = post(running, "join", headers=shown(token), json=body)
    assert (answer.status_code, "proof is wrong" in answer.text) == (403, True)
    assert not running.folder.key(2).exists()


def test_an_invitation_ends_and_is_withdrawn(running, capsys, tmp_path):
    token = invited(running, capsys, "site-02")
    newer = invited(running, capsys, "site-02")
    with pytest.raises(UserError, match="no such invitation"):
        joining.join(tmp_path / "older", token)
    assert pgfed(capsys, "remove-site", running.folder.path, "site-02")[0] == 0
    with pytest.raises(UserError, match=r"no invitation is open|no such invitation"):
        joining.join(tmp_path / "withdrawn", newer)
    short = invitations.invite(running.folder, 2, hours=1 / 3600)
    pgfed(capsys, "invite", running.folder.path, "site-04", "--hours", "1")  # the server looks
    until(lambda: time.time() > read(running, "site-02").ends, "it has ended", 10)
    with pytest.raises(UserError, match="no such invitation"):
        joining.join(tmp_path / "late", short)


def read(running, name: str) -> invitations.Invitation:
    file = running.folder.server / "invitations" / f"{name}.json"
    return invitations.Invitation(**json.loads(file.read_text()))


def test_a_site_gets_a_new_key_in_its_own_folder(running, capsys, tmp_path):
    """What else is there stays, and the new key is let in at once; the old one is not."""
    place, site = running.folder.path, tmp_path / "site"
    joining.join(site, invited(running, capsys, "site-04"))
    settings = (site / "site.toml").read_text()
    shutil.copytree(site, tmp_path / "old")
    (site / "record.jsonl").write_text("as it was")
    assert pgfed(capsys, "remove-site", place, "site-04")[0] == 0
    joining.join(site, invited(running, capsys, "site-04"))
    assert (site / "site.key").read_bytes() != (tmp_path / "old" / "site.key").read_bytes()
    assert tomllib.loads((site / "site.toml").read_text()) == tomllib.loads(settings)
    assert (site / "record.jsonl").read_text() == "as it was"
    assert joining.fetch(SiteFolder(site)) == []
    with pytest.raises(UserError, match="this key is not admitted"):
        joining.fetch(SiteFolder(tmp_path / "old"))
    assert pgfed(capsys, "remove-site", place, "site-04")[0] == 0


def test_who_guesses_has_to_wait(running, capsys, tmp_path):
    """Last of those that join: from here on this address is not listened to."""
    token = invited(running, capsys, "site-04")
    codes = [post(running, "join", headers={"pgfed-invitation": "x"}).status_code for _ in "12345"]
    assert set(codes) <= {401, 429}
    assert post(running, "join", headers=shown(token)).status_code == 429
    assert "127.0.0.1 showed 5 wrong invitations; it has to wait" in running.said("server")


def test_few_addresses_are_remembered(monkeypatch):
    monkeypatch.setattr(lobby, "ADDRESSES", 3)
    room = lobby.Lobby(lambda: None)
    for address in "abcdef":
        room._count_wrong(address)
    assert list(room._wrong) == ["d", "e", "f"]


@pytest.mark.parametrize(
    "text", ["", "x", "a:1/site-00/x/y", "nonsense/site-00/" + "a" * 43 + "/" + "b" * 43,
             "10.0.0.1:80/site-00/insecure/" + "b" * 43, "a:1/../" + "a" * 43 + "/" + "b" * 43],
)  # fmt: skip
def test_what_is_no_invitation(text):
    with pytest.raises(UserError):
        read_token(text)


def test_a_folder_that_is_somebody_elses_is_left_alone(running, capsys, tmp_path):
    token = Token("127.0.0.1:9", "site-01", "a" * 43, "b" * 43)
    (tmp_path / "x").write_text("")
    with pytest.raises(UserError, match="not empty"):
        joining.join(tmp_path, token)
    folder = small.make(tmp_path / "f")
    with pytest.raises(UserError, match="another site's folder"):
        joining.join(small.site_path(folder.path, 0), token)


# -- more seats, a new experiment, a new key ---------------------------------------------------


def test_a_site_takes_nothing_but_the_agreement_from_the_server(tmp_path):
    """Nor modules to import, nor a yes that nobody there has said."""
    folder = small.make(tmp_path, approved=False)
    site = small.site_path(folder.path, 0)
    content = making.handed(folder, 0)
    for own in ("auto_approve", "allow_modules", "max_rounds", "client"):
        wrong = {**content, "agreement": {**content["agreement"], own: True}}
        with pytest.raises(UserError, match=own):
            making.write_site(site, wrong, b"")


@pytest.mark.parametrize("key", ["federation", "server"])
def test_nothing_of_the_servers_gets_into_files_for_the_sites_machine(tmp_path, key):
    """The unit for systemd names the federation: a name of several lines would be a command."""
    folder = small.make(tmp_path, approved=False)
    content = making.handed(folder, 0)
    content["agreement"][key] += "\n[Service]\nUser=root\nExecStartPre=/bin/touch stolen"
    site = tmp_path / "joining"
    site.mkdir()
    with pytest.raises(UserError, match=key):
        making.write_site(site, content, b"")
    assert not any(site.iterdir())


def test_seats_are_added_and_every_site_agrees_anew(tmp_path, capsys):
    with Running(tmp_path, cohort=1.0, rounds=2, approved=False) as federation:
        place = federation.folder.path
        for client in range(3):
            limits = small.site_path(place, client) / "site.toml"
            limits.write_text(f"max_rounds = 9\n{limits.read_text()}")
        federation.serve()
        code, said = pgfed(capsys, "add-seats", place, 1)
        assert (code, "4 seats now; the server knows" in said) == (0, True)
        assert FederationFolder(place).agreement.seats == 4
        token = pgfed(capsys, "invite", place)[1].splitlines()[0]
        assert "/site-03/" in token
        joining.join(tmp_path / "new", read_token(token))
        (tmp_path / "data-3.npz").write_bytes((tmp_path / "data-0.npz").read_bytes())
        new = tmp_path / "new" / "site.toml"
        new.write_text(new.read_text().replace('data = ""', 'data = "npz:../data-3.npz"'))
        folders = [small.site_path(place, i) for i in range(3)]
        for site in folders:
            code, said = pgfed(capsys, "fetch", site)
            assert (code, "site.toml, experiment.toml changed" in said) == (0, True)
            kept = tomllib.loads((site / "site.toml").read_text())
            assert (kept["seats"], kept["max_rounds"], kept["auto_approve"]) == (4, 9, False)
            assert kept["data"].startswith("npz:")
        sites = []
        for site in [*folders, tmp_path / "new"]:
            assert pgfed(capsys, "approve", site, "--yes")[0] == 0
            sites.append(Site(SiteFolder(site)))
        conduct(grid_of(sites), FederationFolder(place), Options(min_replies=4))
        for site in [*folders, tmp_path / "new"]:
            assert list((site / "models").glob("small/pgfed/seed-0/model.safetensors"))
        (federation.folder.run / "federation.json").write_text('{"run": "x", "digest": "y"}')
        assert "not over" in mistake(capsys, "add-seats", place, 1)


def test_names_stay_as_they_are_when_seats_are_added(tmp_path):
    folder = small.make(tmp_path)
    more = making.add_seats(folder, 98)
    assert more.agreement.names[:2] + more.agreement.names[-2:] == [
        *("site-00", "site-01", "site-99", "site-100"),
    ]
    assert [more.key(i).is_file() for i in range(4)] == [True, True, True, False]
    with pytest.raises(UserError, match="the sites here have names"):
        making.add_seats(more, 1)
    named = making.add_seats(more, ["north", "south"])
    assert named.agreement.names[-2:] == ["north", "south"]
    with pytest.raises(UserError, match="each once"):
        making.add_seats(named, ["north"])
