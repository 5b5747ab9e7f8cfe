"""Data as sites have it: layouts of folders, stray and bad files, splits, one client per site."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pgfed.config.experiment import from_dict
from pgfed.config.tables import Data, Experiment
from pgfed.data import matching
from pgfed.data.dataset import Dataset
from pgfed.data.datasets import load
from pgfed.data.federation import Federation, build, build_seat
from pgfed.engine.setup import load_federation, prepare
from pgfed.errors import UserError


def image(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), value, np.uint8)).save(path)


def sites(folder: Path, names: str | list[str] = "ns", each: int = 4) -> Path:
    for k, site in enumerate(names):
        for label in "ab":
            for i in range(each):
                image(folder / site / label / f"{i}.png", 10 * k + i)
    return folder


def read(folder: Path, **options: bool) -> Dataset:
    return load(f"folder:{folder}", None, **options)


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        read(folder)
    return str(caught.value)


def test_sites_are_clients_and_domains(tmp_path: Path):
    data = read(sites(tmp_path))
    assert data.client is not None
    assert data.domain is not None
    assert data.client.tolist() == data.domain.tolist() == ["n"] * 8 + ["s"] * 8
    assert data.split is None


def test_a_level_of_splits_below_the_sites(tmp_path: Path):
    for site in "ns":
        for split, n in (("train", 3), ("val" if site == "n" else "Validation", 2), ("test", 1)):
            for label in "ab":
                for i in range(n):
                    image(tmp_path / site / split / label / f"{i}.png")
    (tmp_path / "n" / "train" / "notes.txt").write_text("hello")
    data = read(tmp_path)
    assert data.class_names == ("a", "b")
    federation = build(data, partition="given", validation_share=0.5)
    assert federation.client_labels is not None
    assert federation.client_labels.tolist() == ["n", "s"]
    for counts, n in (
        (federation.n_train, 6),
        (federation.n_validation, 4),
        (federation.n_test, 2),
    ):
        assert counts.tolist() == [n, n]


def test_splits_without_sites_are_no_sites(tmp_path: Path):
    sites(tmp_path, ["train", "test"])
    data = read(tmp_path)
    assert data.client is None
    assert data.domain is None
    assert data.split is not None
    assert data.split.tolist() == [True] * 8 + [False] * 8


def test_stray_files_are_ignored_and_said_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    sites(tmp_path)
    strays = ["notes.txt", ".DS_Store", "n/Thumbs.db", "n/README", "n/a.csv", "s/x.docx"]
    for name in strays:
        (tmp_path / name).write_text("no image")
    assert len(read(tmp_path).y) == 16
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path}: 6 ignored")
    assert "notes.txt" in line
    assert "n/README" in line
    assert line.endswith("and 1 more")


def test_a_stray_file_in_the_first_site_hides_no_level(tmp_path: Path):
    """0.1: "'s' holds folders (a domain) but 'n' holds files (a class)"."""
    sites(tmp_path)
    (tmp_path / "n" / "0.txt").write_text("first of all")
    assert read(tmp_path).client is not None


def test_folders_beside_the_images_of_a_class_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    image(sites(tmp_path) / "n" / "a" / "old" / "1.png")
    assert len(read(tmp_path).y) == 16
    assert "n/a/old" in caplog.text


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ("b/1.png", ["'n' holds folders (a, b)", "'b' holds files (1.png)", "<site>/<split>"]),
        ("n/c/deep/1.png", ["'n/c' holds folders (deep)", "'n/a' holds files"]),
        ("docs/notes.txt", ["site folder 'docs' holds no images", "notes.txt"]),
    ],
)
def test_a_mixture_is_one_line_that_shows_it(tmp_path: Path, odd: str, words: list[str]):
    image(sites(tmp_path) / odd.replace("txt", "png"))
    if odd.endswith("txt"):
        (tmp_path / odd).with_suffix(".png").rename(tmp_path / odd)
    text = refused(tmp_path)
    for word in [*words, str(tmp_path)]:
        assert word in text


def test_sites_below_splits_are_refused_with_the_layout(tmp_path: Path):
    sites(tmp_path / "train")
    sites(tmp_path / "test")
    text = refused(tmp_path)
    assert "'test/n' is none of the splits" in text
    assert "<site>/<split>/<class>/*" in text


# ------------------------------------------------------------------------------ bad files


def damage(folder: Path) -> None:
    """Six files that are no images, and one whose header is in order."""
    for i in range(6):
        (folder / "n" / "a" / f"bad{i}.png").write_bytes(b"no image")
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    cut = folder / "s" / "b" / "cut.png"
    Image.fromarray(noise).save(cut)
    cut.write_bytes(cut.read_bytes()[:-40])


def test_all_bad_files_are_listed_at_once(tmp_path: Path):
    damage(sites(tmp_path))
    text = refused(tmp_path)
    assert text.startswith(f"{tmp_path}: 7 images cannot be read: n/a/bad0.png, ")
    assert "n/a/bad4.png and 2 more" in text
    assert "bad5" not in text
    assert "--skip-bad" in text


def test_bad_files_come_before_differing_sizes(tmp_path: Path):
    damage(sites(tmp_path))
    Image.new("L", (5, 9)).save(tmp_path / "n" / "b" / "odd.png")
    assert "7 images cannot be read" in refused(tmp_path)


def test_bad_files_are_left_out_on_request(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    whole = read(sites(tmp_path))
    damage(tmp_path)
    caplog.clear()
    data = read(tmp_path, skip_bad=True)
    np.testing.assert_array_equal(data.x, whole.x)
    np.testing.assert_array_equal(data.y, whole.y)
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path}: 7 left out")
    assert "n/a/bad0.png" in line


def test_a_site_that_comes_later_has_splits_and_bad_files_too(tmp_path: Path):
    sites(tmp_path, ["train", "val", "test"], each=1)
    (tmp_path / "train" / "a" / "bad.png").write_bytes(b"no image")
    agreed = {"classes": "abc", "input_shape": (1, 8, 8), "input_type": "uint8", "image_size": None}
    with pytest.raises(UserError, match=r"bad\.png.*--skip-bad"):
        matching.load(f"folder:{tmp_path}", None, **agreed)
    data = matching.load(f"folder:{tmp_path}", None, **agreed, skip_bad=True)
    seat = build_seat(data, 0, ["0"], test_share=0.5, validation_share=0.0, seed=0)
    assert seat.bounds.tolist() == [[0, 2, 4, 6]]


def test_nothing_but_bad_files(tmp_path: Path):
    for label in "ab":
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.png").write_bytes(b"no image")
    with pytest.raises(UserError, match="none of its 2 files is an image"):
        read(tmp_path, skip_bad=True)


# ------------------------------------------------------------------------------ splits in arrays


def test_validation_in_the_split_overrides_the_share():
    split = np.array(["test", "validation", "train", "train"] * 2 + ["train", "test"])
    federation = Federation.from_arrays(
        np.arange(10.0)[:, None],
        np.arange(10) % 2,
        np.repeat(["east", "west"], 5),
        split=split,
        validation_share=0.5,
    )
    # west: validation, train, train, train, test; and no validation is drawn from it
    for client, owned in enumerate((range(5), range(5, 10))):
        for part, name in ((federation.train, "train"), (federation.validation, "validation")):
            wanted = [float(i) for i in owned if split[i] == name]
            assert sorted(part(client).x[:, 0].tolist()) == wanted
    assert federation.bounds.tolist() == [[0, 2, 3, 5], [5, 8, 9, 10]]


def test_a_client_with_validation_samples_only_is_named():
    with pytest.raises(UserError, match="client west has only validation and test samples"):
        Federation.from_arrays(
            np.zeros((4, 1)),
            np.array([0, 1, 0, 1]),
            np.repeat(["east", "west"], 2),
            split=np.array(["train", "test", "validation", "test"]),
        )


def test_names_of_clients_must_not_be_empty():
    with pytest.raises(UserError, match="empty name"):
        Dataset.from_arrays("data", np.zeros((2, 1)), np.arange(2), client=np.array(["a", ""]))


# ------------------------------------------------------------------------------ one client per site


def experiment(folder: Path, **more: object):  # type: ignore[no-untyped-def]
    return from_dict(
        {"methods": ["local"], "rounds": 1, "data": {"dataset": f"folder:{folder}"}, **more}
    )


def test_one_client_per_site_and_all_in_each_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "pgfed.notes")
    sites(tmp_path, ["north", "south"])
    setup = prepare(experiment(tmp_path), tmp_path)
    assert [row["label"] for row in setup.federation.table()] == ["north", "south"]
    assert (setup.experiment.data.partition, setup.experiment.data.clients) == ("given", 2)
    assert (setup.experiment.cohort, setup.cohort) == (1.0, 2)
    line = "2 sites in the data, one client each, all of the 2 clients in each round"
    assert line in caplog.text
    caplog.clear()
    prepare(setup.experiment, tmp_path)  # all of it is said in the file now
    assert not any("sites in the data" in line for line in caplog.messages)


def test_a_cohort_that_is_given_stands(tmp_path: Path):
    sites(tmp_path)
    assert prepare(experiment(tmp_path, cohort=0.5), tmp_path).cohort == 1


@pytest.mark.parametrize(("n", "cohort"), [(9, 9), (10, 2)])
def test_from_ten_sites_on_a_quarter_is_drawn(tmp_path: Path, n: int, cohort: int):
    sites(tmp_path, [f"site{i}" for i in range(n)], each=1)
    assert prepare(experiment(tmp_path), tmp_path).cohort == cohort


def test_format_1_sees_domains_only(tmp_path: Path):
    sites(tmp_path, each=50)
    table = {"dataset": f"folder:{tmp_path}", "min_samples": 1, "alpha": 9.0}
    setup = prepare(experiment(tmp_path, format=1, data=table), tmp_path)
    assert (setup.experiment.data.partition, len(setup.federation)) == ("dirichlet", 20)
    assert setup.experiment.cohort == 0.25


def test_an_asked_partition_by_domain_cuts_the_sites(tmp_path: Path):
    data = Data(
        f"folder:{sites(tmp_path)}", partition="domain", clients=4, min_samples=1, alpha=9.0
    )
    federation, _ = load_federation(Experiment(data=data), tmp_path)
    assert federation.client_labels is None
    assert federation.domains is not None
    assert federation.domains.tolist() == ["n", "n", "s", "s"]


def test_another_number_of_clients_than_sites_is_refused_with_a_way_out(tmp_path: Path):
    data = Data(f"folder:{sites(tmp_path)}", clients=5)
    with pytest.raises(UserError, match=r"names 2 clients.*another data\.partition"):
        load_federation(Experiment(data=data), tmp_path)
