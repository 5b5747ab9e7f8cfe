"""`pgfed run`: what it prints, what it leaves, and that it can be repeated."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli.cli_tools import SMALL, Done, blobs, tree

Command = Callable[..., Done]

BOTH = ["--set", 'methods=["pgfed", "local"]', *SMALL]


def test_prints_the_table_the_verdict_and_the_folder(pgfed: Command, tmp_path: Path) -> None:
    done = pgfed("run", *BOTH)
    assert done.code == 0
    assert re.search(r"accuracy +last round +gain over local +clearly gained", done.out)
    assert re.search(r"^pgfed .* %", done.out, re.MULTILINE)
    assert "Run folder: runs/digits" in done.out
    assert "\nToo short to judge: it cannot be said yet whether federating helps.\n" in done.out
    assert (tmp_path / "runs/digits/summary.json").is_file()


def test_own_data_names_the_run(pgfed: Command, tmp_path: Path) -> None:
    np.savez("tab.npz", **blobs(90))
    own = ["--set", "data.dataset=npz:tab.npz", "--set", "data.min_samples=5"]
    done = pgfed("run", *BOTH, *own, "--set", "rounds=1")
    assert done.code == 0
    assert "Run folder: runs/tab\n" in done.out
    document = tomllib.loads((tmp_path / "runs/tab/experiment.toml").read_text())
    assert document["name"] == "tab"
    assert pgfed("resume", "runs/tab").code == 0
    assert tomllib.loads((tmp_path / "runs/tab/experiment.toml").read_text()) == document


def test_runs_without_folder_go_side_by_side(pgfed: Command, tmp_path: Path) -> None:
    for name in ("digits", "digits-2", "digits-3"):
        assert f"runs/{name}\n" in pgfed("run", *BOTH, "--set", "rounds=1").out
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [
        "digits",
        "digits-2",
        "digits-3",
    ]


def test_an_empty_folder_will_do(pgfed: Command, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    assert pgfed("run", *BOTH, "--out", "new").code == 0
    assert (tmp_path / "new/summary.json").is_file()


def test_plain_lines_where_there_is_no_terminal(pgfed: Command) -> None:
    lines = pgfed("run", *BOTH).err.splitlines()
    last = [line for line in lines if "round 2/2" in line]
    assert [line.split()[0] for line in last] == ["local", "pgfed"]  # Local goes first
    for line in last:
        assert re.fullmatch(
            r"\S+ seed 0 round 2/2, accuracy [\d.]+ %, [\d,]+ samples/s, \d+ s left", line
        )
    assert not any("\x1b" in line for line in lines)


def test_quiet_prints_nothing(pgfed: Command, tmp_path: Path) -> None:
    done = pgfed("run", *BOTH, "--quiet", "--out", "here")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (tmp_path / "here/summary.json").is_file()


def test_json_is_the_summary_and_nothing_else(pgfed: Command, tmp_path: Path) -> None:
    done = pgfed("run", *BOTH, "--json", "--out", "here")
    summary = json.loads(done.out)
    assert summary == json.loads((tmp_path / "here/summary.json").read_text())
    assert [(row["method"], row["seed"]) for row in summary] == [("pgfed", 0), ("local", 0)]


def test_dry_run_says_what_would_run_and_writes_nothing(pgfed: Command, tmp_path: Path) -> None:
    done = pgfed("run", *BOTH, "--dry-run", "--set", "rounds=300")
    assert done.code == 0
    assert "2 methods x 1 seed x 300 rounds, 1 of 4 clients per round" in done.out
    assert re.search(r"^ +3 +\d+ +\d+ +\d+ ", done.out, re.MULTILINE)  # the last client's samples
    # PGFed sends 3 models down and 2 up, one down in round 1: METHODS' formula, M = 1.
    model = 4 * (64 * 128 + 128 + 128 * 10 + 10)
    down, up = ((3 * 300 - 2) * model / 1e6, 2 * 300 * model / 1e6)
    assert re.search(rf"^pgfed +\S+ \S+ +{down:.1f} MB +{up:.1f} MB", done.out, re.MULTILINE)
    assert re.search(r"Estimated in all: .* MB of memory, [\d.]+ [kM]B on disk, .* sent", done.out)
    assert tree(tmp_path) == set()


def test_dry_run_says_what_travels(pgfed: Command) -> None:
    """A step is as long as the model; all data in one place sends nothing."""
    done = pgfed("run", "--dry-run", *SMALL, "--methods", "fedavg,mr-mtl,fedper,pooled")
    (line,) = [line for line in done.out.splitlines() if line.startswith("The model: ")]
    assert "9,610 sent each way (38.4 kB) and 0 kept at home by fedavg, mr-mtl; " in line
    assert "8,320 sent each way (33.3 kB) and 1,290 kept at home by fedper; " in line
    assert "0 sent each way (0 B) and 9,610 kept at home by pooled" in line


def test_data_in_the_place_of_an_experiment_file(pgfed: Command) -> None:
    for words in (("run",), ("data", "show")):
        done = pgfed(*words, "csv:banks")
        assert done.code == 2
        assert done.line.endswith("an experiment file, or --set data.dataset=csv:banks")


def test_the_resolved_experiment_repeats_the_run(pgfed: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **blobs(200))
    changed = ["--set", "data.dataset=npz:own.npz", "--set", "method.pgfed.mu=0.05"]
    more = ["--set", "method.pgfed.epochs=2", "--set", "cohort=0.5", "--set", "seeds=[3,1]"]
    pgfed("run", *BOTH, *changed, *more, "--out", "first")
    (tmp_path / "elsewhere").mkdir()
    # From another folder, and on two worker processes: the same bits.
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pgfed",
                "run",
                "../first/experiment.toml",
                "--out",
                "../second",
            ),
            *("--quiet", "--set", "engine.backend=process", "--set", "engine.workers=2"),
        ],
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    files = sorted((tmp_path / "first").rglob("*.safetensors"))
    assert len(files) > 8
    for file in [*files, *(tmp_path / "first").rglob("alpha.npz")]:
        again = tmp_path / "second" / file.relative_to(tmp_path / "first")
        assert file.read_bytes() == again.read_bytes(), file.name
    for file in (tmp_path / "first").rglob("clients.csv"):
        again = tmp_path / "second" / file.relative_to(tmp_path / "first")
        assert file.read_text() == again.read_text()


OWN = {
    "colour images": lambda d: {"x": np.random.default_rng(0).integers(0, 256, (90, 3, 20, 20))},
    "grey images": lambda d: {"x": np.random.default_rng(0).integers(0, 256, (90, 20, 20))},
    "tiny images": lambda d: {"x": np.random.default_rng(0).integers(0, 256, (90, 1, 6, 9))},
}


@pytest.mark.parametrize("change", OWN.values(), ids=OWN)
def test_images_of_a_stranger(
    pgfed: Command, tmp_path: Path, change: Callable[..., dict[str, np.ndarray]]
) -> None:
    data = blobs(90) | change(None)
    data |= {"x": data["x"].astype(np.uint8), "y": data["y"] * 7 - 5}
    # The last client has three samples.
    data["client"] = np.repeat([12, 40, 7, 99], [30, 30, 27, 3])
    np.savez(tmp_path / "own.npz", **data)
    done = pgfed(
        "run",
        *SMALL[:4],
        *SMALL[6:],
        "--set",
        "data.dataset=npz:own.npz",
        "--set",
        "train.epochs=1",
    )
    assert done.code == 0, done.err
    folder = tmp_path / "runs/own/pgfed/seed-0"
    manifest = json.loads((folder / "models/manifest.json").read_text())
    assert manifest["classes"] == ["-5", "2", "9"]
    assert [c["client"] for c in manifest["clients"]] == ["7", "12", "40", "99"]
    assert manifest["clients"][3]["n_train"] + manifest["clients"][3]["n_test"] == 3
    expected = "mlp" if min(manifest["input_shape"][1:]) < 16 else "cnn"
    assert manifest["model"] == expected


def test_feature_vectors_of_a_stranger(pgfed: Command, tmp_path: Path) -> None:
    data = blobs(120)
    data |= {"y": data["y"] + 10, "client": np.repeat([0, 1, 2, 3], [40, 40, 37, 3])}
    np.savez(tmp_path / "own.npz", **data)
    exp = tmp_path / "plant.toml"
    exp.write_text(
        'rounds = 12\ncohort = 1\nmethods = ["local", "pgfed"]\n'
        '[data]\ndataset = "npz:own.npz"\n[engine]\nbackend = "serial"\n'
    )
    done = pgfed("run", exp, "--json")
    assert done.code == 0, done.err
    by_method = {row["method"]: row for row in json.loads(done.out)}
    assert by_method["pgfed"]["mean_score"] > 0.9
    assert (tmp_path / "runs/plant/experiment.toml").is_file()


def test_folders_of_images(pgfed: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for name, level in (("cat", 60), ("dog", 190)):
            (tmp_path / "pets" / site / name).mkdir(parents=True)
            for k in range(12):
                pixels = rng.normal(level, 20, (18, 18, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "pets" / site / name / f"{k}.png")
    settings = ["data.dataset=folder:pets", "data.partition=domain", "data.min_samples=5"]
    words = [word for setting in settings for word in ("--set", setting)]
    done = pgfed("run", *BOTH, *words, "--out", "here")
    assert done.code == 0, done.err
    clients = (tmp_path / "here/pgfed/seed-0/clients.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in clients[1:]] == ["north", "north", "south", "south"]


def test_clients_without_test_data_are_left_out_and_counted(pgfed: Command, tmp_path: Path) -> None:
    data = blobs(80)
    split = np.arange(80) % 2
    split[:20] = 0  # the first client keeps nothing for testing
    np.savez(tmp_path / "own.npz", **data, client=np.arange(80) // 20, split=split)
    done = pgfed("run", *BOTH[:6], "--set", "data.dataset=npz:own.npz", "--out", "here")
    assert "1 client without test data left out" in done.out
    first = (tmp_path / "here/pgfed/seed-0/clients.csv").read_text().splitlines()[1]
    assert first.split(",")[:7] == ["0", "", "20", "0", "", "", ""]


def test_training_that_diverges_is_not_judged(pgfed: Command, tmp_path: Path) -> None:
    done = pgfed("run", *BOTH, "--set", "train.lr=1e30", "--set", "rounds=2", "--out", "run")
    assert done.code == 0
    assert re.search(
        r"^local: training diverged to NaN for \d+ clients; lower train.lr.$",
        done.out,
        re.MULTILINE,
    )
    told = re.search(
        r"^pgfed: (\d+) of (\d+) replies did not count \((.*)\)", done.out, re.MULTILINE
    )
    assert told
    assert told[1] == told[2]
    assert "NaN" in told[3]
    assert "Training failed" in done.out
    assert "helped" not in done.out
    found = pgfed("report", "run", "--format", "md").out
    assert "**Training failed, so it cannot be said whether federating helps.**" in found
    assert told[0] in found


def test_so_few_clients_that_one_takes_part_per_round(pgfed: Command) -> None:
    few = ["--set", "data.clients=3", "--set", "rounds=1"]
    told = "One of 3 clients took part in each round, so nothing was averaged"
    assert told in pgfed("run", *BOTH, *few).out
    assert told not in pgfed("run", *BOTH, *few, "--set", "cohort=1.0").out


def test_no_test_data_at_all(pgfed: Command) -> None:
    done = pgfed("run", *BOTH, "--set", "data.test_share=0", "--json")
    assert done.code == 0, done.err
    assert {row["best_score"] for row in json.loads(done.out)} == {None}
    assert "No client has test data" in pgfed("run", *BOTH, "--set", "data.test_share=0").out


def test_an_error_in_a_client_is_one_line(
    pgfed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(
        "from dataclasses import dataclass\n"
        "from pgfed.methods.contract import Algorithm\n\n\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Broken(Algorithm):\n"
        "    name = 'broken'\n"
        "    summary = 'fails'\n"
        "    leaves = {}\n\n"
        "    def local_update(self, task, state, message, data, rng):\n"
        "        raise ZeroDivisionError('of nothing')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["run", *BOTH, "--set", 'methods=["broken:Broken"]', "--quiet"]
    done = pgfed(*words)
    assert done.code == 1
    for word in ("broken", "round 1", "client", "train", "of nothing", "--debug"):
        assert word in done.line
    with pytest.raises(Exception, match="of nothing"):
        pgfed("--debug", *words)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("pgfed.engine.setup.prepare", "pgfed: interrupted"),
        ("pgfed.api.run_setup", "pgfed: interrupted during the start"),  # nothing to go on from
        ("pgfed.report.rendering.write_page", "pgfed: interrupted"),
    ],
)
def test_ctrl_c_is_one_line_wherever_it_comes(
    pgfed: Command, monkeypatch: pytest.MonkeyPatch, where: str, said: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)  # as a scheduler does

    monkeypatch.setattr(where, interrupted)
    done = pgfed("run", *BOTH, "--set", "rounds=1", "--quiet")
    assert (done.code, done.err.splitlines()) == (130, [said])


def test_ctrl_c_ends_cleanly(tmp_path: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "pgfed", "run", "--out", "here", "--set", "rounds=100000"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    assert any("seed 0 round" in line for line in running.stderr)  # it is under way
    running.send_signal(signal.SIGINT)
    _, rest = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted during local, seed 0" in rest.splitlines()[-1]
    assert "Traceback" not in rest
    history = (tmp_path / "here/local/seed-0/history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in history] == list(range(1, len(history) + 1))


# ------------------------------------------------------------------------------ sites in the data


def _sites(folder: Path) -> None:
    for k, name in enumerate(("east/a", "east/b", "west/a", "west/b")):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            pixels = np.full((8, 8), 60 * k + i, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")


_ON_SITES = (
    *("run", "--set", "data.dataset=folder:sites", "--set", "engine.backend=serial"),
    *("--set", "rounds=1", "--set", 'methods=["local"]', "--out", "out"),
)


def test_sites_of_a_folder_are_clients_and_it_is_said(pgfed: Command, tmp_path: Path) -> None:
    _sites(tmp_path / "sites")
    (tmp_path / "sites" / "notes.txt").write_text("who was here")
    done = pgfed(*_ON_SITES)
    assert done.code == 0, done.err
    first, second, *_ = done.err.splitlines()
    assert first.startswith("pgfed: sites: 1 ignored")
    assert "notes.txt" in first
    assert second == (
        "pgfed: folder:sites: 2 sites in the data, one client each, all of the 2 clients in each "
        "round (data.partition and cohort change it)"
    )
    written = tomllib.loads((tmp_path / "out" / "experiment.toml").read_text())
    assert (written["cohort"], written["data"]["partition"]) == (1.0, "given")
    rows = (tmp_path / "out" / "local" / "seed-0" / "clients.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["east", "west"]
    again = pgfed("run", "out/experiment.toml", "--out", "again", "--quiet")
    assert (again.code, again.err) == (0, "")


def test_bad_images_are_listed_and_left_out_with_skip_bad(pgfed: Command, tmp_path: Path) -> None:
    _sites(tmp_path / "sites")
    for i in range(2):
        (tmp_path / "sites" / "west" / "b" / f"bad{i}.png").write_bytes(b"no image")
    refused = pgfed(*_ON_SITES)
    assert refused.code == 2
    assert "sites: 2 images cannot be read: west/b/bad0.png, west/b/bad1.png;" in refused.line
    assert "--skip-bad" in refused.line
    done = pgfed(*_ON_SITES, "--skip-bad")
    assert done.code == 0, done.err
    assert done.err.startswith("pgfed: sites: 2 left out")
    assert "west/b/bad0.png, west/b/bad1.png" in done.err.splitlines()[0]
    assert tomllib.loads((tmp_path / "out" / "experiment.toml").read_text())["data"]["skip_bad"]


def test_a_file_without_format_divides_sites_as_before(pgfed: Command, tmp_path: Path) -> None:
    _sites(tmp_path / "sites")
    (tmp_path / "old.toml").write_text(
        'rounds = 1\nmethods = ["local"]\n[data]\ndataset = "folder:sites"\nclients = 3\n'
        'min_samples = 1\nalpha = 9.0\n[engine]\nbackend = "serial"\n'
    )
    done = pgfed("run", "old.toml", "--out", "out")
    assert done.code == 0, done.err
    written = tomllib.loads((tmp_path / "out" / "experiment.toml").read_text())
    assert (written["cohort"], written["data"]["partition"]) == (0.25, "dirichlet")
    assert "sites in the data" not in done.err
