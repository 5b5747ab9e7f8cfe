"""Damaged and hostile bytes, made from good ones. Every case has a number that repeats it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

INTEGERS = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
)
# What stands where a number, a string or a name stood.
WORDS = (
    *(b"0", b"-1", b"-0.0", b"1e999", b"-1e-999", b"nan", b"NaN", b"inf", b"Infinity", b"null"),
    *(b"true", b"false", b'""', b"[]", b"{}", b"9" * 30, b"9" * 5_000, b"0x" + b"f" * 5_000),
    *(b"1" + b"0" * 400, b"1.7976931348623157e308", b"5e-324", b"1000000000000", b"2147483648"),
    *(b"../../../etc/passwd", b"\\u0000", b'"\\u2028"', b"\xff\xfe", b"\xed\xa0\x80", b"\xc3\xa9"),
    *(b"'", b'"', b'"""', b"\\", b"\n", b"\r", b"\t", b"\0", b"=", b",", b"#", b"1979-05-27"),
    *(b"sk:skew", b"pgfed", b"fedavg", b"x" * 2_000, b'"' + b"line\\nline" + b'"'),
)
NESTS = ((b"[", b"]"), (b'{"a":', b"}"), (b"a.", b""), (b"[[a", b"]]\n"), (b"(", b")"))

Operation = Callable[[bytes, random.Random], bytes]


def mutate(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """The bytes with one to four things done to them; ``others``: good files of other kinds."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        if others and rng.random() < 0.1:
            data = _swap_header(data, rng.choice(others), rng)
        else:
            data = rng.choice(OPERATIONS)(data, rng)
    return data


def _span(data: bytes, rng: random.Random, longest: int = 64) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.randrange(1, longest))


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _flip_early(data: bytes, rng: random.Random) -> bytes:
    """Headers are at the start."""
    head = min(len(data), 128)
    return _flip(data[:head], rng) + data[head:]


def _set(data: bytes, rng: random.Random) -> bytes:
    start, stop = _span(data, rng, 16)
    return data[:start] + bytes([rng.choice((0, 0xFF, 0x80, 0x20))]) * (stop - start) + data[stop:]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.choice((0, 1, 8, len(data) // 2, max(0, len(data) - 1), _span(data, rng)[0]))]


def _delete(data: bytes, rng: random.Random) -> bytes:
    start, stop = _span(data, rng)
    return data[:start] + data[stop:]


def _duplicate(data: bytes, rng: random.Random) -> bytes:
    start, stop = _span(data, rng, 512)
    return data[:stop] + data[start:stop] * rng.choice((1, 2, 50)) + data[stop:]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at, _ = _span(data, rng)
    return data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at:]


def _append(data: bytes, rng: random.Random) -> bytes:
    return data + rng.choice((b"\0", b"\n", rng.randbytes(30), b"\0" * 100_000, data))


def _exchange(data: bytes, rng: random.Random) -> bytes:
    a, b = sorted((_span(data, rng), _span(data, rng)))
    if a[1] > b[0]:
        return data
    return data[: a[0]] + data[slice(*b)] + data[a[1] : b[0]] + data[slice(*a)] + data[b[1] :]


def _absurd_integer(data: bytes, rng: random.Random) -> bytes:
    """A size field, in either byte order."""
    width = rng.choice((1, 2, 4, 8))
    value = (rng.choice(INTEGERS) % 2 ** (8 * width)).to_bytes(width, rng.choice(("little", "big")))
    limit = rng.choice((64, len(data)))
    at = rng.randrange(max(1, min(limit, len(data))))
    return data[:at] + value + data[at + width :]


def _number(data: bytes, rng: random.Random) -> bytes:
    """A number of a text becomes another word."""
    found = list(re.finditer(rb"-?\d[\d.]*", data[:50_000]))
    return _replaced(data, rng.choice(found), rng) if found else data


def _word(data: bytes, rng: random.Random) -> bytes:
    found = list(re.finditer(rb"[A-Za-z_][\w-]*|\"[^\"\n]*\"", data[:50_000]))
    return _replaced(data, rng.choice(found), rng) if found else data


def _replaced(data: bytes, match: re.Match[bytes], rng: random.Random) -> bytes:
    return data[: match.start()] + rng.choice(WORDS) + data[match.end() :]


def _line(data: bytes, rng: random.Random) -> bytes:
    """A line is dropped, doubled or moved."""
    lines = data.split(b"\n")
    line = lines[rng.randrange(len(lines))]
    if rng.random() < 0.5:
        lines.remove(line)
    if rng.random() < 0.7:
        lines.insert(rng.randrange(len(lines) + 1), line)
    return b"\n".join(lines)


def _nest(data: bytes, rng: random.Random) -> bytes:
    before, after = rng.choice(NESTS)
    depth = rng.choice((10, 200, 20_000))
    start, stop = _span(data, rng)
    return data[:start] + before * depth + data[start:stop] + after * depth + data[stop:]


def _swap_header(data: bytes, other: bytes, rng: random.Random) -> bytes:
    length = rng.choice((4, 8, 16, 64))
    return other[:length] + data[length:]


OPERATIONS: tuple[Operation, ...] = (
    *(_flip, _flip_early, _set, _truncate, _delete, _duplicate, _insert, _append, _exchange),
    *(_absurd_integer, _absurd_integer, _number, _number, _word, _line, _nest),
)
