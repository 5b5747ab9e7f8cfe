"""Errors that are the user's to mend: one line each, no stack trace."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the input. The command line prints its one line and exits with 2."""


def unknown(what: str, found: str, allowed: Iterable[str]) -> UserError:
    """Name the thing that does not exist, what may stand there, and the nearest spelling."""
    names = sorted(allowed)
    near = difflib.get_close_matches(found, names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return UserError(f"{what}: unknown {found!r}{hint}; allowed: {', '.join(names)}")


def need(holds: bool, key: str, rule: str, found: float) -> None:
    """Refuse a value: the key, what must hold, what was found."""
    if not holds:
        raise UserError(f"{key}: must be {rule}, found {found:g}")
