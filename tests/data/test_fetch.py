"""Downloads from a server on loopback: good, broken off, wrong, missing, hostile."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from data_files import write_cifar10_binary, write_mnist, write_organamnist

from pgfed.cli.app import main
from pgfed.data import datasets
from pgfed.data.named import fetch as fetching
from pgfed.data.named.fetch import SOURCES, Remote, Source, fetch
from pgfed.errors import UserError


class Mirror:
    """A server whose manners a test can spoil."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []  # path, Range
        self.ranges = True
        self.break_after: list[int] = []  # bytes to send before hanging up, per answer
        self.say_length = True
        self.shift = 0  # how far off the answer to a Range starts
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/sets"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers.get("Range")
        self.requests.append((handler.path, wanted))
        content = self.files.get(handler.path.removeprefix("/sets/"))
        if content is None:
            handler.send_error(404)
            return
        start = 0
        if wanted and self.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                handler.send_response(416)
                handler.send_header("Content-Range", f"bytes */{len(content)}")
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return
            start += self.shift
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            handler.send_response(200)
        if self.say_length:
            handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        body = content[start:]
        handler.wfile.write(body[: self.break_after.pop(0)] if self.break_after else body)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Mirror()
    yield server
    server.close()


def publish(monkeypatch: pytest.MonkeyPatch, mirror: Mirror, name: str, **files: bytes) -> None:
    """Serve these contents as the files of a data set, under their true checksums."""
    source = SOURCES[name]
    remotes = []
    for remote in source.files:
        content = files[remote.file]
        mirror.files[remote.file] = content
        kind = remote.checksum.partition(":")[0]
        remotes.append(Remote(remote.url, f"{kind}:{hashlib.new(kind, content).hexdigest()}"))
    changed = Source(source.place, tuple(remotes), source.unpack)
    monkeypatch.setitem(SOURCES, name, changed)


def tar(*members: tuple[str, bytes | None], **links: str) -> bytes:
    """An archive; None makes a folder, `links` are symbolic links."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        for name, target in links.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return buffer.getvalue()


def cifar_archive(folder: Path) -> bytes:
    write_cifar10_binary(folder)
    files = sorted((folder / "cifar-10-batches-bin").iterdir())
    return tar(
        ("cifar-10-batches-bin", None),
        *((f"cifar-10-batches-bin/{file.name}", file.read_bytes()) for file in files),
    )


CIFAR = "cifar-10-binary.tar.gz"
ORGANS = "organamnist.npz"


@pytest.fixture
def organs(tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """One file of a single download, served by the mirror."""
    write_organamnist(tmp_path / "made")
    content = (tmp_path / "made" / ORGANS).read_bytes()
    publish(monkeypatch, mirror, "organamnist", **{ORGANS: content})
    return content


def failure(*args: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        fetch(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def leftovers(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


# ------------------------------------------------------------------------------ good


def test_an_archive_is_fetched_checked_unpacked_and_loads(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
):
    publish(monkeypatch, mirror, "cifar10", **{CIFAR: cifar_archive(tmp_path / "made")})
    root = tmp_path / "root"
    seen: list[tuple[int, int | None]] = []
    place = fetch("cifar10", root, progress=lambda *step: seen.append(step), base_url=mirror.url)
    assert place == root / "cifar-10-batches-bin"
    assert leftovers(root) == ["cifar-10-batches-bin"]
    assert len(datasets.load("cifar10", root).y) == 60
    size = len(mirror.files[CIFAR])
    assert seen[0] == (0, size)
    assert seen[-1] == (size, size)
    assert mirror.requests == [(f"/sets/{CIFAR}", None)]


def test_the_command_says_where_it_lies(
    tmp_path: Path,
    mirror: Mirror,
    organs: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(fetching, "fetch", partial(fetch, base_url=mirror.url))
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["data", "fetch", "organamnist", "--data-root", str(tmp_path), *more])
        assert ended.value.code == 0
    plain, read = capsys.readouterr().out.split("\n", 1)
    place = str(tmp_path / ORGANS)
    assert plain == f"organamnist: {place}"
    assert json.loads(read) == {"name": "organamnist", "path": place}


def test_four_files_are_fetched_into_their_folder(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
):
    write_mnist(tmp_path / "made")
    files = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    publish(monkeypatch, mirror, "mnist", **files)
    assert fetch("mnist", tmp_path, base_url=mirror.url + "/") == tmp_path / "mnist"
    assert leftovers(tmp_path / "mnist") == sorted(files)
    assert len(datasets.load("mnist", tmp_path).y) == 30
    # What is there already is not asked for again; what is missing is.
    mirror.requests.clear()
    fetch("mnist", tmp_path, base_url=mirror.url)
    assert mirror.requests == []
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    fetch("mnist", tmp_path, base_url=mirror.url)
    assert [path for path, _ in mirror.requests] == ["/sets/t10k-labels-idx1-ubyte.gz"]


def test_a_single_file_is_fetched(tmp_path: Path, mirror: Mirror, organs: bytes):
    place = fetch("organamnist", tmp_path / "root", base_url=mirror.url)
    assert place.read_bytes() == organs
    assert leftovers(tmp_path / "root") == [ORGANS]


def test_a_server_that_does_not_say_the_length(tmp_path: Path, mirror: Mirror, organs: bytes):
    mirror.say_length = False
    seen: list[tuple[int, int | None]] = []
    root = tmp_path / "root"
    fetch("organamnist", root, progress=lambda *step: seen.append(step), base_url=mirror.url)
    assert seen[-1] == (len(organs), None)


# ------------------------------------------------------------------------------ broken off


def test_a_broken_download_goes_on_where_it_broke(tmp_path: Path, mirror: Mirror, organs: bytes):
    mirror.break_after = [1_000, 500]
    place = fetch("organamnist", tmp_path / "root", base_url=mirror.url)
    assert place.read_bytes() == organs
    assert [wanted for _, wanted in mirror.requests] == [None, "bytes=1000-", "bytes=1500-"]


def test_what_came_is_kept_for_the_next_call(
    tmp_path: Path, mirror: Mirror, organs: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fetching, "TRIES", 1)
    mirror.break_after = [1_000]
    root = tmp_path / "root"
    text = failure("organamnist", root, base_url=mirror.url)
    assert "1,000 bytes are kept" in text
    assert leftovers(root) == [ORGANS + ".part"]
    assert fetch("organamnist", root, base_url=mirror.url).read_bytes() == organs
    assert mirror.requests[-1] == (f"/sets/{ORGANS}", "bytes=1000-")
    assert leftovers(root) == [ORGANS]


def test_a_server_without_range_sends_all_again(tmp_path: Path, mirror: Mirror, organs: bytes):
    mirror.ranges = False
    mirror.break_after = [1_000]
    place = fetch("organamnist", tmp_path / "root", base_url=mirror.url)
    assert place.read_bytes() == organs
    assert len(mirror.requests) == 2


def test_a_server_that_goes_on_elsewhere_is_not_believed(
    tmp_path: Path, mirror: Mirror, organs: bytes
):
    mirror.break_after = [1_000]
    mirror.shift = 7
    place = fetch("organamnist", tmp_path / "root", base_url=mirror.url)
    assert place.read_bytes() == organs
    assert [wanted for _, wanted in mirror.requests] == [None, "bytes=1000-", None]


@pytest.mark.parametrize("old", ["stale", "complete", "longer"])
def test_a_part_left_from_before(tmp_path: Path, mirror: Mirror, organs: bytes, old: str):
    part = tmp_path / (ORGANS + ".part")
    part.write_bytes({"stale": b"x" * 900, "complete": organs, "longer": organs + b"x"}[old])
    assert fetch("organamnist", tmp_path, base_url=mirror.url).read_bytes() == organs
    assert not part.exists()


# ------------------------------------------------------------------------------ wrong


def test_a_wrong_checksum_is_not_kept(tmp_path: Path, mirror: Mirror, organs: bytes):
    mirror.files[ORGANS] = organs[:-1] + b"?"
    root = tmp_path / "root"
    text = failure("organamnist", root, base_url=mirror.url)
    assert "wrong checksum: expected md5:" in text
    assert leftovers(root) == []


def test_missing_at_the_server(tmp_path: Path, mirror: Mirror):
    text = failure("cifar100", tmp_path, base_url=mirror.url)
    assert f"{mirror.url}/cifar-100-binary.tar.gz: the server answered 404" in text
    assert leftovers(tmp_path) == []


def test_no_server_there(tmp_path: Path, mirror: Mirror):
    mirror.close()
    assert "cannot be downloaded" in failure("cifar10", tmp_path, base_url=mirror.url)


@pytest.mark.parametrize("say_length", [True, False])
def test_an_endless_file_is_cut(
    tmp_path: Path,
    mirror: Mirror,
    organs: bytes,
    monkeypatch: pytest.MonkeyPatch,
    say_length: bool,
):
    monkeypatch.setattr(fetching, "MAX_DOWNLOAD", 2_000)
    mirror.say_length = say_length
    assert "2,000" in failure("organamnist", tmp_path / "root", base_url=mirror.url)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digits", "nothing to fetch"),
        ("office-home", "https://www.hemanthdv.org/officeHomeDataset.html"),
        ("cifar", "did you mean 'cifar10'?"),
        ("npz:own.npz", "unknown 'npz:own.npz'"),
    ],
)
def test_what_cannot_be_fetched(tmp_path: Path, name: str, words: str):
    assert words in failure(name, tmp_path)


def test_only_http_mirrors(tmp_path: Path):
    assert "http:// or https://" in failure("mnist", tmp_path, base_url="file:///etc")


def test_a_root_that_cannot_be_written(tmp_path: Path, mirror: Mirror):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in failure("mnist", tmp_path / "file" / "x", base_url=mirror.url)


# ------------------------------------------------------------------------------ archives


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tar(("../evil", b"x")), "'../evil' lies outside"),
        (tar(("/tmp/evil", b"x")), "lies outside"),
        (tar(("cifar-10-batches-bin/../../evil", b"x")), "lies outside"),
        (tar(("elsewhere/evil", b"x")), "lies outside"),
        (tar(**{"cifar-10-batches-bin__x": "/etc/passwd"}), "is a link or a device"),
        (tar(("cifar-10-batches-bin/big", bytes(3_000))), "more than 2,000 bytes"),
        (tar(*((f"cifar-10-batches-bin/{i}", b"") for i in range(20))), "10 files"),
        (tar(), "does not hold the folder"),
        (b"no archive at all", "not a readable archive"),
        (tar(("cifar-10-batches-bin/a", bytes(range(256)) * 7))[:-60], "not a readable archive"),
    ],
    ids=range(10),
)
def test_hostile_and_damaged_archives(
    tmp_path: Path,
    mirror: Mirror,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    words: str,
):
    monkeypatch.setattr(fetching, "MAX_UNPACKED", 2_000)
    monkeypatch.setattr(fetching, "MAX_MEMBERS", 10)
    publish(monkeypatch, mirror, "cifar10", **{CIFAR: content})
    root = tmp_path / "deep" / "root"
    assert words in failure("cifar10", root, base_url=mirror.url)
    assert leftovers(root) == [CIFAR]
    assert leftovers(tmp_path) == ["deep"]
    assert leftovers(tmp_path / "deep") == ["root"]


def test_an_incomplete_folder_of_the_user_is_left_alone(tmp_path: Path, mirror: Mirror):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    text = failure("cifar10", tmp_path, base_url=mirror.url)
    assert "exists but is not complete" in text
    assert leftovers(folder) == ["mine.txt"]


def test_every_source_names_a_checksum_and_a_place():
    for name, source in SOURCES.items():
        assert name in datasets.names()
        for remote in source.files:
            kind, _, digest = remote.checksum.partition(":")
            assert len(digest) == hashlib.new(kind).digest_size * 2
            assert remote.url.startswith(("http://", "https://"))
