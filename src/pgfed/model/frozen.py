"""What of a model is never trained: it stays in the module, and is known by its checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from safetensors.torch import save
from torch import Tensor, nn


def resting(module: nn.Module) -> list[nn.Module]:
    """The modules all of whose parameters are frozen, with whatever is in them.

    They rest in evaluation mode: batch norm moves none of their statistics, nothing drops out.
    """
    found: dict[int, nn.Module] = {}
    for part in module.modules():
        own = list(part.parameters())
        if own and not any(p.requires_grad for p in own):
            found |= {id(inner): inner for inner in part.modules()}
    return list(found.values())


def to_bytes(values: Mapping[str, Tensor]) -> bytes:
    """A safetensors file without metadata: equal values are equal files."""
    # Copies, as a file holds no tensor under two names.
    return save({name: value.detach().cpu().contiguous().clone() for name, value in values.items()})


def digest(values: Mapping[str, Tensor]) -> str | None:
    """The SHA-256 of their file; None where there are none."""
    return hashlib.sha256(to_bytes(values)).hexdigest() if values else None
