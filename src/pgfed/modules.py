"""A user's own modules, ``package.module:Name``: where they are found, and who may name them.

They are found where Python finds modules, and in folders that were named for it; pgfed never puts
the current folder there. What somebody else's file names is imported only if it is allowed here.
Importing this module does not import torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgfed.errors import UserError


def load_object(key: str, name: str) -> Any:
    """The object that ``package.module:attribute`` names."""
    module_name, attribute = _parts(key, name)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            hint = " (not on Python's path; --module-path DIR adds the folder it lies in)"
        raise UserError(f"{key}: cannot import {module_name!r}: {error}{hint}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise UserError(f"{key}: module {module_name!r} has no {attribute!r}") from None


def search(folders: Iterable[Path]) -> None:
    """Find modules in these folders, too; after all others, so that they hide none of them."""
    for folder in folders:
        place = folder.expanduser()
        if not place.is_dir():
            raise UserError(f"--module-path: {folder}: no such folder")
        if str(place.resolve()) not in sys.path:
            sys.path.append(str(place.resolve()))


# -- what others name --------------------------------------------------------------------------


def _in_python(module: str) -> str:
    return f'allow_modules=["{module}"]'


@dataclass(frozen=True)
class Allowed:
    """The modules that may be imported because somebody else's file names them. Here: none."""

    names: frozenset[str] = frozenset()  # module, or module:Name
    how: Callable[[str], str] = _in_python  # what to write to allow one more

    def check(self, key: str, name: str, file: Path) -> None:
        """Refuse an own module, as ``key`` of ``file`` names it, that is not allowed."""
        if ":" not in name:
            return
        module, _ = _parts(f"{file}: {key}", name)
        if not self.names & {module, name}:
            raise UserError(
                f"{file}: {key}: {name!r} would import the Python module {module!r}; if you trust "
                f"that module, allow it with {self.how(module)}"
            )


NONE = Allowed()


def allowed(names: Iterable[str] | None, how: Callable[[str], str] = _in_python) -> Allowed:
    """What a user allows; ``how`` says how one more would be."""
    if isinstance(names, str):
        raise UserError(f"allow_modules: found {names!r}; allowed: a list of modules")
    return Allowed(frozenset(names or ()), how)


def _parts(key: str, name: str) -> tuple[str, str]:
    """Module and attribute; what cannot be a module's name does not come near the importer."""
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module.split(".")):
        raise UserError(f"{key}: found {name!r}; allowed: package.module:Name")
    return module, attribute
