"""Text and JSON from a run folder; what is missing or damaged is one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pgfed.errors import UserError


def read_optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}


def read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError):
        raise UserError(f"{path}: not JSON; the file is damaged") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object; the file is damaged")
    return content


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; the file is damaged") from None
