"""How much a data file may claim, so that a damaged or hostile one cannot exhaust the machine."""

from __future__ import annotations

import os

from pgfed.errors import UserError

# An image beyond this is taken for damaged or hostile (a 24-megapixel photo passes).
MAX_PIXELS = 64_000_000


def memory_limit() -> int:
    """Bytes that one data set may take: half of the machine's memory (8 GiB where unknown)."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return 8 * 2**30


def check_size(where: str, nbytes: int) -> None:
    """Refuse data that would not fit, before any of it is read."""
    limit = memory_limit()
    if nbytes > limit:
        raise UserError(
            f"{where}: needs {nbytes / 2**30:.1f} GiB unpacked; "
            f"allowed on this machine: {limit / 2**30:.1f} GiB (half of its memory)"
        )
