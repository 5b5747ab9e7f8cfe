"""Errors that are the user's to mend: one line each, no stack trace."""

from __future__ import annotations

import difflib
import errno
import logging
from collections.abc import Iterable

LONGEST = 2_000  # characters of a message

# What is no error but worth a line: the command line prints it, a program may listen to it.
NOTES = logging.getLogger("pgfed.notes")


class OneLine(Exception):
    """Its message is one printable line of bounded length, whatever a file put into it."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


class UserError(OneLine):
    """A mistake in the input. The command line prints its one line and exits with 2."""


class Unwritable(UserError):
    """A file cannot be written."""

    def __init__(self, path: object, error: OSError) -> None:
        super().__init__(f"{path}: cannot be written ({error.strerror or error})")
        self.errno = error.errno


def is_full(error: BaseException) -> bool:
    """Whether there was no room on a disk: once there is, the same may go well."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return isinstance(error, Unwritable | OSError) and error.errno in full


class Interrupted(OneLine):
    """Ctrl+C, with a word on how to go on. The command line prints its line and exits with 130."""


def one_line(text: str) -> str:
    """A text of others, fit for a terminal and a log: shortened, control characters spelled out."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 4 :]}"
    if text.isprintable():
        return text
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST // 2]} ..."


def first_line(error: BaseException) -> str:
    """What an error of others says, in its first line; at least what kind it is."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def unknown(what: str, found: str, allowed: Iterable[str]) -> UserError:
    """Name the thing that does not exist, what may stand there, and the nearest spelling."""
    names = sorted(allowed)
    near = difflib.get_close_matches(found, names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return UserError(f"{what}: unknown {found!r}{hint}; allowed: {', '.join(names)}")
