"""[engine] compression over Flower: the bits of the simulation, and the bytes on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord

from any_model import ANY_MODEL
from federation import small
from federation.local_grid import grid_of
from federation.small import assert_same_as_serial, history
from federation.test_ledger import private
from federation.test_site import RUN, ask, greet
from pgfed.engine.exchange.compression import UNSAID, Compression
from pgfed.engine.storage.durable import state_from_bytes
from pgfed.federation.flower.records import unpack
from pgfed.federation.server.conduct import Options, conduct
from pgfed.federation.site.answers import Site
from pgfed.federation.site.record import FILE
from pgfed.methods.randomness import generator

QUICK = Options(round_timeout=1.0)
INT8 = {"compression": "int8"}
DAILY = ("fedavg", "pgfed", "scaffold", "fedamp", "mr-mtl")
D = 9610


def sites_of(folder):
    return [Site(small.site_folder(folder, i)) for i in range(small.SITES)]


@pytest.fixture(scope="module")
def pgfed(tmp_path_factory):
    folder = small.make(tmp_path_factory.mktemp("pgfed"), engine=INT8)
    grid = grid_of(sites_of(folder))
    conduct(grid, folder, QUICK)
    return folder, grid


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(m, marks=() if m in DAILY else pytest.mark.nightly)
        for m in ANY_MODEL
        if m != "local"
    ],
)
def test_every_method_has_the_bits_of_the_simulation(method: str, tmp_path: Path) -> None:
    folder = small.make(tmp_path, methods=[method], engine=INT8)
    conduct(grid_of(sites_of(folder)), folder, QUICK)
    assert_same_as_serial(folder, method, compression=Compression("int8"))


def test_top_k_too(tmp_path: Path) -> None:
    folder = small.make(tmp_path, engine={"compression": "top-k", "top_k": 0.1})
    conduct(grid_of(sites_of(folder)), folder, QUICK)
    assert_same_as_serial(folder, "pgfed", compression=Compression("top-k", 0.1))


def test_bytes_are_those_on_the_wire(pgfed) -> None:
    """What the history counts per key is what the arrays of the messages hold."""
    folder, grid = pgfed
    wire: dict[int, dict[str, int]] = {}
    for message in grid.sent:
        head, _ = unpack(message.content)
        if head["stage"] != "train":
            continue
        sizes = wire.setdefault(head["round"], {})
        record = message.content["message.arrays"]
        assert isinstance(record, ArrayRecord)
        for name, array in record.items():
            key = name.rpartition(".")[0] or name
            sizes[key] = sizes.get(key, 0) + len(array.data)
    for record in history(folder, "pgfed"):
        down = dict(wire[record["round"]])
        down.pop("ids", None)  # numbers of clients: counted as overhead
        assert record["bytes_by_key"]["down"] == down
        up = sum(facts.get("bytes_up", 0) for facts in record["sites"].values())
        numbers = record["bytes_by_key"]["up"].pop("r")  # travels as a number
        assert record["bytes_up"] == up + numbers
    packed = D + 4 * 76
    assert record["bytes_by_key"]["up"]["gradient"] == 2 * packed


def test_a_reply_may_have_the_bytes_that_it_has(pgfed) -> None:
    folder, grid = pgfed
    came = {
        (r["round"], i): f["bytes_up"]
        for r in history(folder, "pgfed")
        for i, f in r["sites"].items()
        if f.get("bytes_up")
    }
    allowed = {}
    for message, most in zip(grid.sent, grid.most.values(), strict=True):
        head, _ = unpack(message.content)
        if head["stage"] == "train":
            allowed[head["round"], head["client"]] = most
    assert allowed == came


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("one")
    return small.make(place, methods=["fedavg"], cohort=1.0, rounds=5, engine=INT8)


@pytest.fixture
def site(made) -> Site:
    site = Site(small.site_folder(made, 1))
    greet(site)
    return site


def sent(site: Site) -> dict[str, torch.Tensor]:
    side = site._side("fedavg", 0)
    return Compression("int8").encoded("w", side.w0, D, generator(0, "test"))


def test_a_site_refuses_what_it_cannot_open(site: Site) -> None:
    good = sent(site)
    cases = {
        "message: keys: w.scale missing": {"w.int8": good["w.int8"]},
        "message: w: comes twice": {**good, "w": torch.zeros(D)},
        "message.w: holds NaN": {**good, "w.scale": good["w.scale"] * float("nan")},
        "message.w: shape (9609,)": {**good, "w.int8": good["w.int8"][:-1]},
    }
    for reason, message in cases.items():
        head, results = ask(site, "train", message)
        assert head["error"].startswith(reason), (reason, head)
        assert not results
    head, results = ask(site, "train", good)
    assert "error" not in head
    assert results["update"]["w.int8"].dtype == torch.int8


def test_the_record_has_the_length_of_what_was_meant(site: Site, made) -> None:
    _, results = ask(site, "train", sent(site), ticket="for the record")
    step = Compression("int8").opened(results["update"])["w"]
    noted = (small.site_path(made.path, 1) / FILE).read_text().splitlines()[-1]
    assert f'"norm": {float(torch.linalg.vector_norm(step.double()))}'[:14] in noted


def test_what_a_private_site_stores_is_what_travels(tmp_path: Path) -> None:
    folder = small.make(tmp_path, methods=["fedavg"], cohort=1.0, rounds=5, engine=INT8)
    private(small.site_path(folder.path, 1), "epsilon = 6.0\ndelta = 1e-3\nclip = 0.5\n")
    site = Site(small.site_folder(folder, 1))
    greet(site)
    _, first = ask(site, "train", sent(site))
    _, again = ask(site, "train", sent(site), ticket="another")
    assert set(first["update"]) == {"w.int8", "w.scale", "n"}
    assert small.same(first["update"], again["update"])
    outbox = tmp_path / "data-1.npz.privacy"
    stored = [path for path in outbox.rglob("*") if path.is_file() and path.stat().st_size > D]
    (reply,) = [s for s in map(_read, stored) if s is not None and "w.int8" in s]
    assert small.same(reply, first["update"])
    states = site._states({"run": RUN, "seed": 0}, "fedavg")
    assert UNSAID + "w" in states.last()


def _read(path: Path):
    try:
        return state_from_bytes(path.read_bytes())
    except Exception:
        return None
