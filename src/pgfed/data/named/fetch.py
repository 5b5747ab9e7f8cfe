"""`pgfed data fetch`: download a data set, check it, and put it in place in one step."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import ssl
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from pgfed.data import datasets
from pgfed.errors import UserError, unknown

Progress = Callable[[int, int | None], None]

MAX_DOWNLOAD = 2**30  # bytes; the largest of these files has a sixth of it
MAX_UNPACKED = 2**30
MAX_MEMBERS = 1_000
TRIES = 5  # connections per file; each goes on where the last one broke off
TIMEOUT = 30.0  # seconds without a byte
_BLOCK = 2**18


@dataclass(frozen=True)
class Remote:
    """One file: where it is, and what it must hash to ("sha256:..." or "md5:...")."""

    url: str
    checksum: str

    @property
    def file(self) -> str:
        return PurePosixPath(urllib.parse.urlparse(self.url).path).name


@dataclass(frozen=True)
class Source:
    """What makes up a data set, and the name it gets under the data root."""

    place: str
    files: tuple[Remote, ...]
    unpack: bool = False  # a tar.gz archive that holds one folder, `place`


def _idx_files(base: str, *checksums: str) -> tuple[Remote, ...]:
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        Remote(f"{base}/{stem}-ubyte.gz", f"sha256:{checksum}")
        for stem, checksum in zip(stems, checksums, strict=True)
    )


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"

SOURCES = {
    "mnist": Source(
        "mnist",
        _idx_files(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "fashion-mnist": Source(
        "fashion-mnist",
        _idx_files(
            # The publisher offers no https here; the checksum vouches for the content.
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "08dc20ab1689590a0bcd66e874647b6ee8464e2d501b5a3f1f78831db19a3fdc",
            "b0197879cbda89f3dc7b894f9fd52b858e68ea4182b6947c9d8c2b67e5f18dcc",
            "78dcbbfb5a27efaf1b6c1d616caca68560be8766c5bffcb2791df9273a534229",
            "42bd18137a62d5998cdeae52bf3a0676ac6b706f5cf8439b47bb5b151ae3dccf",
        ),
    ),
    "cifar10": Source(
        "cifar-10-batches-bin",
        (
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        unpack=True,
    ),
    "cifar100": Source(
        "cifar-100-binary",
        (
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
        unpack=True,
    ),
    "heart-disease": Source(
        "heart-disease",
        tuple(
            Remote(f"{_UCI}/heart-disease/processed.{hospital}.data", f"sha256:{checksum}")
            for hospital, checksum in (
                (
                    "cleveland",
                    "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
                ),
                (
                    "hungarian",
                    "ca73b739efd8e29273aff13c1516a68e946be1786bda13a82f6f82173cd0dc6f",
                ),
                (
                    "switzerland",
                    "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
                ),
                ("va", "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f"),
            )
        ),
    ),
    "organamnist": Source(
        "organamnist.npz",
        (
            Remote(
                "https://zenodo.org/records/6496656/files/organamnist.npz",
                "md5:866b832ed4eeba67bfb9edee1d5544e6",
            ),
        ),
    ),
}


def fetch(
    name: str,
    root: Path,
    *,
    progress: Progress | None = None,
    base_url: str | None = None,
) -> Path:
    """Bring a data set under the data root and return where it lies; at once if it is there.

    `progress` is called with the bytes of the current file and their total, where known.
    `base_url` is a mirror that holds the same file names.
    """
    source = _source(name, root, base_url)
    place = root / source.place
    if datasets.is_present(name, root) and place.exists():
        return place
    if source.unpack and place.exists():
        raise UserError(f"{place}: exists but is not complete; move it away and fetch again")
    try:
        folder = root if source.unpack or len(source.files) == 1 else place
        folder.mkdir(parents=True, exist_ok=True)
        for remote in source.files:
            url = f"{base_url.rstrip('/')}/{remote.file}" if base_url else remote.url
            target = folder / remote.file
            if not (target.is_file() and _digest(target, remote.checksum) == remote.checksum):
                _download(url, target, remote.checksum, progress)
        if source.unpack:
            archive = folder / source.files[0].file
            _unpack(archive, place)
            archive.unlink()
    except OSError as error:
        raise UserError(f"{root}: cannot be written ({error.strerror or error})") from None
    return place


def _source(name: str, root: Path, base_url: str | None) -> Source:
    if name in datasets.names() and datasets.needs_no_files(name):
        raise UserError(f"{name}: comes with scikit-learn, nothing to fetch")
    if name == "office-home":
        how = datasets.office_home_by_hand(root)
        raise UserError(f"office-home: has no direct download; {how}")
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    if base_url is not None and not base_url.startswith(("http://", "https://")):
        raise UserError(f"base URL {base_url!r}: allowed: http:// or https://")
    return SOURCES[name]


# ------------------------------------------------------------------------------ download


def _download(url: str, target: Path, checksum: str, progress: Progress | None) -> None:
    part = target.with_name(target.name + ".part")
    resumed = part.exists()
    _transfer(url, part, progress)
    found = _digest(part, checksum)
    if found != checksum and resumed:
        # The old beginning may be what was wrong: once more, all of it.
        part.unlink()
        _transfer(url, part, progress)
        found = _digest(part, checksum)
    if found != checksum:
        part.unlink()
        raise UserError(f"{url}: wrong checksum: expected {checksum}, found {found}; not kept")
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, target)


def _transfer(url: str, part: Path, progress: Progress | None) -> None:
    """Bring the whole file into `part`, going on wherever a connection breaks off."""
    reason: object = ""
    for _ in range(TRIES):
        try:
            if _receive(url, part, progress):
                return
            reason = "the connection broke off"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and part.exists():  # nothing after what we have
                if error.headers.get("Content-Range") == f"bytes */{part.stat().st_size}":
                    return
                part.unlink()
                continue
            raise UserError(f"{url}: the server answered {error.code} {error.reason}") from None
        except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
            reason = error or type(error).__name__
        except urllib.error.URLError as error:
            reason = error.reason
            break
    have = part.stat().st_size if part.exists() else 0
    kept = f"; {have:,} bytes are kept, fetch again to go on" if have else ""
    raise UserError(f"{url}: cannot be downloaded ({reason}){kept}")


def _receive(url: str, part: Path, progress: Progress | None) -> bool:
    """One connection; True when the file is complete."""
    have = part.stat().st_size if part.exists() else 0
    # Compression on the way would make byte positions meaningless.
    headers = {"User-Agent": "pgfed", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        total = _total(response, have)
        if response.status != 206 or total is None:
            have, total = 0, _number(response.headers.get("Content-Length"))
            if response.status == 206:
                part.unlink(missing_ok=True)
                return False
        if (total or 0) > MAX_DOWNLOAD:
            raise UserError(f"{url}: {total:,} bytes; allowed: {MAX_DOWNLOAD:,}")
        with part.open("ab" if have else "wb") as file:
            return _copy(url, response, file, have, total, progress)


def _copy(
    url: str,
    response: http.client.HTTPResponse,
    file: IO[bytes],
    have: int,
    total: int | None,
    progress: Progress | None,
) -> bool:
    if progress:
        progress(have, total)
    while block := response.read1(_BLOCK):
        have += len(block)
        if have > MAX_DOWNLOAD:
            raise UserError(f"{url}: longer than the {MAX_DOWNLOAD:,} bytes allowed")
        file.write(block)
        if progress:
            progress(have, total)
    return total is None or have >= total


def _total(response: http.client.HTTPResponse, have: int) -> int | None:
    """The size of the whole file, if the answer goes on exactly where we stand."""
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range") or "")
    return int(match[2]) if match and int(match[1]) == have else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _digest(path: Path, like: str) -> str:
    """The checksum of a file, of the same kind as another."""
    kind = like.partition(":")[0]
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


# ------------------------------------------------------------------------------ archives


def _unpack(archive: Path, place: Path) -> None:
    """Unpack plain files of one folder beside their place, then move the folder there at once."""
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as scratch:
        try:
            with tarfile.open(archive, "r:gz") as tar:
                tar.extractall(scratch, filter=_guard(archive, place.name))
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise UserError(f"{archive}: not a readable archive ({error})") from None
        unpacked = Path(scratch) / place.name
        if not unpacked.is_dir():
            raise UserError(f"{archive}: does not hold the folder {place.name}")
        for path in unpacked.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        os.replace(unpacked, place)


def _guard(archive: Path, folder: str) -> Callable[[tarfile.TarInfo, str], tarfile.TarInfo]:
    """Says in words what it refuses, and leaves to Python's own filter what is left.

    The checksum vouches for the archive; this is for the day when a checksum is wrong.
    """
    count = size = 0

    def look(member: tarfile.TarInfo, into: str) -> tarfile.TarInfo:
        nonlocal count, size
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or path.parts[:1] != (folder,):
            raise UserError(f"{archive}: refused, {member.name!r} lies outside of {folder}/")
        if not (member.isfile() or member.isdir()):
            raise UserError(f"{archive}: refused, {member.name!r} is a link or a device")
        count, size = count + 1, size + member.size
        if size > MAX_UNPACKED or count > MAX_MEMBERS:
            raise UserError(
                f"{archive}: refused, unpacks to more than {MAX_UNPACKED:,} bytes or "
                f"{MAX_MEMBERS:,} files"
            )
        return tarfile.data_filter(member, into)

    return look
