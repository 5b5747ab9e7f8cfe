"""TOML files: experiments and schemas, which may come from somebody else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from pgfed.errors import UserError

# tomllib takes time with the square of a key's parts: minutes for one of 20,000 in 40 kB.
_PART = r"(?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*')[ \t]*\.[ \t]*"
_ENDLESS = re.compile(rf"(?:{_PART}){{64}}")


def read(path: Path, limit: int, what: str, named: str = "") -> tuple[dict[str, Any], bytes]:
    """What the file says, and its bytes; ``what`` it should be and ``named``, the key that names
    it, are for the error."""
    where = f"{named}: {path}" if named else str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise UserError(f"{where}: cannot be read ({error.strerror})") from None
    if len(raw) > limit:
        raise UserError(f"{where}: larger than {limit:,} bytes; not {what}")
    try:
        text = raw.decode()
        if _ENDLESS.search(text):
            raise UserError(f"{where}: not valid TOML: a key of more than 64 parts")
        return tomllib.loads(text), raw
    except UnicodeDecodeError:
        raise UserError(f"{where}: not a text file (TOML is UTF-8)") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid TOML: {error}") from None
