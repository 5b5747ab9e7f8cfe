"""`pgfed federation ...`: the folders it writes, and one line for every mistake."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import stat
import subprocess
import sys
import tomllib

import pytest
import tomli_w

from federation import small
from pgfed.cli import app as cli
from pgfed.cli.terminal import federation as standing
from pgfed.federation.folders.folder import FederationFolder, SiteFolder, digest, load_experiment
from pgfed.federation.server.status import Status
from pgfed.federation.server.status import read as read_status
from pgfed.model.metrics import METRICS
from report.folders import make_folder


def pgfed(capsys, *words) -> tuple[int, str]:
    """Exit code and what was said."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["federation", *map(str, words)])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


def mistake(capsys, *words) -> str:
    code, said = pgfed(capsys, *words)
    assert code == 2, said
    assert said.count("\n") == 1, said
    return said


def test_init_writes_everything(tmp_path, capsys):
    place = tmp_path / "fed"
    code, said = pgfed(
        capsys, "init", place, "--sites", 3, "--server", "fed.example.org:8000",
        "--classes", "cat,dog", "--shape", "3x32x32", "--with-keys",
    )  # fmt: skip
    assert code == 0
    assert "3 seats; inputs 3x32x32, 2 classes" in said
    folder = FederationFolder(place)
    experiment, methods = load_experiment(folder.experiment_file)
    assert list(methods) == ["local", "pgfed"]
    assert experiment.model.name == "cnn"
    assert experiment.cohort == 1.0
    for client in range(3):
        site = SiteFolder(place / "sites" / f"site-{client:02}")
        assert site.file.client == client
        assert digest(site.file, load_experiment(site.experiment_file)[0]) == digest(
            folder.agreement, experiment
        )
        assert (site.path / "site.pub").read_bytes() == folder.key(client).read_bytes()
        assert stat.S_IMODE(site.key.stat().st_mode) == 0o600
        assert os.access(site.path / "start.sh", os.X_OK)
        assert "federation site" in (site.path / "pgfed-site.service").read_text()
    for own in (place, folder.server):  # other users of the machine see nothing of what sites send
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
    secrets = {path.name for path in (place / "sites").rglob("*.key")}
    assert secrets == {"site.key"}  # neither the server's nor the authority's leaves
    unit = (place / "server" / "pgfed-server.service").read_text()
    assert "federation server /srv/pgfed/fed --resume\n" in unit
    wanted = ("LimitNOFILE=65536", "MemoryMax=", "NoNewPrivileges=true", "ProtectSystem=strict")
    assert all(f"\n{line}" in unit for line in wanted)


def test_classes_and_shape_come_from_the_experiments_data(tmp_path, capsys):
    assert pgfed(capsys, "init", tmp_path / "fed", "--sites", 2)[0] == 0
    agreement = FederationFolder(tmp_path / "fed").agreement
    assert agreement.input_shape == [1, 8, 8]
    assert agreement.input == "uint8"
    assert agreement.classes == [str(k) for k in range(10)]
    assert agreement.seats == 2


def test_sites_have_names_of_their_own(tmp_path, capsys):
    place = tmp_path / "fed"
    assert pgfed(capsys, "init", place, "--sites", "va,cleveland", "--with-keys")[0] == 0
    folder = FederationFolder(place)
    assert folder.agreement.names == ["cleveland", "va"]  # as a simulation has them
    assert SiteFolder(place / "sites" / "va").file.client == folder.seat("va") == 1
    assert load_experiment(folder.experiment_file)[0].data.draws == "by-name"
    assert "va: removed" in pgfed(capsys, "remove-site", place, "va")[1]
    assert "allowed: cleveland, va" in mistake(capsys, "remove-site", place, "site-00")


def experiment(path, **content):
    path.write_text(tomli_w.dumps(content))
    return path


def test_mistakes_in_init(tmp_path, capsys):
    wanted = ("init", tmp_path / "fed", "--sites", "2")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert "not empty" in mistake(capsys, "init", tmp_path / "full", "--sites", "2")
    assert "--shape: found '3x32'" in mistake(capsys, *wanted, "--classes", "2", "--shape", "3x32")
    assert "HOST:PORT" in mistake(capsys, *wanted, "--server", "example.org")
    for sites, said in {
        "0": "--sites: found 0",
        "a,A": "sites: found A, a; allowed: 2 names",
        "a,../b": "sites: found '../b'",
    }.items():
        assert said in mistake(capsys, "init", tmp_path / "fed", "--sites", sites)
    assert "port 99999" in mistake(capsys, *wanted, "--server", "example.org:99999")
    assert "each class once" in mistake(capsys, *wanted, "--shape", "4", "--classes", "a,a")
    assert "insecure" in mistake(capsys, *wanted, "--insecure", "--server", "10.0.0.1:8000")
    own = experiment(tmp_path / "own.toml", data={"dataset": "npz:none.npz"})
    assert "--classes, --shape: needed" in mistake(capsys, *wanted, "--experiment", own)
    best = experiment(tmp_path / "best.toml", output={"keep": "best"})
    assert "output.keep" in mistake(capsys, *wanted, "--experiment", best)
    attack = experiment(tmp_path / "attack.toml", attack={"kind": "noise"})
    assert "attack.kind" in mistake(capsys, *wanted, "--experiment", attack)
    new = experiment(tmp_path / "new.toml", data={"new_clients": 0.5})
    assert "data.new_clients" in mistake(capsys, *wanted, "--experiment", new)
    bad = experiment(tmp_path / "bad.toml", methods=["pgfedd"])
    assert "did you mean 'pgfed'" in mistake(capsys, *wanted, "--experiment", bad)
    assert not (tmp_path / "fed").exists()


def test_mistakes_in_folders(tmp_path, capsys):
    for command in ("server", "run", "status"):
        assert "federation.toml: missing" in mistake(capsys, command, tmp_path)
    assert "site.toml: missing" in mistake(capsys, "site", tmp_path)
    folder = small.make(tmp_path / "f")
    site = small.site_path(folder.path, 0)
    text = (site / "site.toml").read_text()
    data = tomllib.loads(text)["data"]
    (site / "site.toml").write_text(text.replace(f'data = "{data}"', 'data = ""'))
    assert "--data: needed" in mistake(capsys, "site", site)
    (site / "site.toml").write_text(text.replace("client = 0", "client = 3"))
    assert "client: found 3; allowed: 0 to 2" in mistake(capsys, "site", site)
    (site / "site.toml").write_text(text.replace("seats = 3", "seats = 0"))
    assert "seats" in mistake(capsys, "site", site)
    (site / "site.toml").write_text("nonsense")
    assert "not valid TOML" in mistake(capsys, "site", site)


@pytest.mark.parametrize(
    ("metric", "said"), [("accuracy", "accuracy 12.0 %"), ("mae", "mean absolute error 0.12")]
)
def test_how_a_run_stands_is_told_in_its_own_metric(tmp_path, capsys, metric, said):
    status = Status(tmp_path, ["north"], METRICS[metric])
    status.site(0)["score"] = 0.12
    status.write(state="running", method="fedavg", seed=0, round=2, rounds=5, score=0.12)
    told = {"run": read_status(tmp_path), "server": None, "folder": "f", "wrong": []}
    standing.show(told)
    assert f"round 2 of 5, {said}" in " ".join(capsys.readouterr().out.split())
    json.loads(json.dumps(told, allow_nan=False))


def test_how_a_run_of_an_earlier_version_stands(tmp_path, capsys):
    status = Status(tmp_path, ["north"])
    status.write(state="finished", method="fedavg", seed=0, round=5, rounds=5)
    old = json.loads((tmp_path / "status.json").read_text())
    for told in (old, *old["sites"]):
        told["accuracy"] = told.pop("score")
    del old["metric"]
    (tmp_path / "status.json").write_text(json.dumps(old))
    told = {"run": read_status(tmp_path), "server": None, "folder": "f", "wrong": []}
    standing.show(told)
    assert "round 5 of 5, accuracy –" in " ".join(capsys.readouterr().out.split())


def test_a_run_ends_in_its_summary_for_programs(tmp_path, capsys, monkeypatch):
    folder = small.make(tmp_path / "f")
    options = {"methods": ["local", "pgfed"], "seeds": [0], "clients": 3}

    def ask(_, command, **__):
        if command == "run":
            make_folder(folder.run, **options)
            record = {"state": "finished", "method": "", "messages": ["all sites are here"]}
            (folder.run / "status.json").write_text(json.dumps(record | {"error": "", "sites": []}))
        return {"running": False, "sites": []}

    monkeypatch.setattr("pgfed.federation.server.control.ask", ask)
    with pytest.raises(SystemExit) as ended:
        cli.main(["federation", "run", str(folder.path), "--json"])
    said = capsys.readouterr()
    assert ended.value.code == 0
    assert "all sites are here" in said.err
    assert [row["method"] for row in json.loads(said.out)] == ["local", "pgfed"]
    assert (folder.run / "report.html").is_file()


def test_run_needs_a_server_and_a_place(tmp_path, capsys):
    folder = small.make(tmp_path)
    assert "the server does not answer" in mistake(capsys, "run", folder.path)
    assert "holds no run to go on with" in mistake(capsys, "run", folder.path, "--resume")
    folder.run.mkdir()
    (folder.run / "federation.json").write_text("{}")
    assert "go on with --resume" in mistake(capsys, "run", folder.path)


@pytest.mark.parametrize("command", ["join", "approve"])
def test_nobody_is_there_to_answer(tmp_path, command):
    """As where it is started by a script, without a terminal."""
    folder = small.make(tmp_path)
    site = small.site_path(folder.path, 0)
    done = subprocess.run(
        [sys.executable, "-m", "pgfed", "federation", command, site],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert done.stderr.endswith("pgfed: stopped: it asked, and there was no answer on its input\n")


def test_a_disk_that_is_full_is_said_in_one_line(tmp_path, capsys, monkeypatch):
    """Not with code 2, after which nothing is tried again."""
    folder = small.make(tmp_path)

    def attend(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "/srv/site/state")

    monkeypatch.setattr("pgfed.federation.site.process.attend", attend)
    code, said = pgfed(capsys, "site", small.site_path(folder.path, 0))
    assert (code, said.startswith("pgfed: disk full: ")) == (1, True)
    assert "/srv/site/state" in said
    assert said.count("\n") == 1


def test_an_edited_file_cannot_open_an_insecure_door(tmp_path, capsys):
    folder = small.make(tmp_path, "10.0.0.1:8000")
    for path, command in (
        (folder.path / "federation.toml", ("server", folder.path)),
        (small.site_path(folder.path, 0) / "site.toml", ("site", small.site_path(folder.path, 0))),
    ):
        path.write_text(path.read_text().replace("insecure = false", "insecure = true"))
        assert "can be reached from other machines" in mistake(capsys, *command)


def test_status_before_and_after_a_run(tmp_path, capsys):
    from federation.local_grid import grid_of
    from pgfed.federation.server.conduct import Options, conduct
    from pgfed.federation.site.answers import Site

    folder = small.make(tmp_path, rounds=1)
    code, said = pgfed(capsys, "status", folder.path)
    assert (code, "no run yet" in said) == (1, True)
    sites = [Site(small.site_folder(folder, i)) for i in range(small.SITES)]
    conduct(grid_of(sites), folder, Options())
    capsys.readouterr()
    code, said = pgfed(capsys, "status", folder.path)
    assert (code, "the server does not answer; is `pgfed" in said) == (1, True)
    assert "finished: pgfed, seed 0, round 1 of 1" in said
    assert all(f"site-{i:02}" in said for i in range(small.SITES))


def test_bad_data_ends_a_site_with_one_line(tmp_path):
    """Exit code 2 is not tried again."""
    folder = small.make(tmp_path)
    site = small.site_path(folder.path, 0)
    bad = tmp_path / "bad.npz"
    bad.write_text("nonsense")
    done = subprocess.run(
        [sys.executable, "-m", "pgfed", "federation", "site", site, "--data", f"npz:{bad}"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert "bad.npz" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_commands_start_without_torch_and_flower():
    code = (
        "import sys; import pgfed.cli.federation; "
        "assert not {'torch', 'flwr', 'cryptography'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class FullDisk(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


def test_a_log_is_dated_rotated_and_bounded(tmp_path, monkeypatch):
    from pgfed.cli.federation import common

    monkeypatch.setattr(common, "LOG", 1000)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    root = logging.getLogger("pgfed")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    common.keep_log(tmp_path / "site.log")
    try:
        for number in range(500):
            common.say(f"line {number}")
        files = sorted(tmp_path.iterdir())
        assert len(files) == 10
        assert all(file.stat().st_size <= 1000 for file in files)
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d line ", files[0].read_text())
        assert files[0].read_text().endswith("line 499\n")
        assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
        root.handlers[1].stream.close()
        root.handlers[1].stream = FullDisk()
        common.say("this line is lost, and nothing ends")
    finally:
        for handler in root.handlers:
            handler.close()


def test_a_run_without_sites_says_who_is_to_be_invited(tmp_path, capsys):
    from federation.local_grid import grid_of
    from pgfed.federation.server.backend import QuorumError
    from pgfed.federation.server.conduct import Options, conduct

    folder = small.make(tmp_path)
    for client in range(small.SITES):
        folder.key(client).unlink()
    with pytest.raises(QuorumError, match="no site has joined yet"):
        conduct(grid_of([]), folder, Options(round_timeout=1.0))
