"""What the paper's studies add to a run folder."""

from __future__ import annotations

from pathlib import Path

from pgfed.errors import UserError, first_line
from pgfed.results.folder.texts import read_optional
from pgfed.results.runs import Arm


def read_new_clients(path: Path) -> dict[str, dict[str, list[float]]]:
    curves = {}
    for method, curve in read_optional(path).items():
        try:
            epochs = [float(e) for e in curve["epochs"]]
            accuracy = [float(a) for a in curve["accuracy"]]
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise UserError(f"{path}: {method!r} is damaged ({first_line(error)})") from None
        if len(epochs) != len(accuracy):
            raise UserError(f"{path}: {method!r} has {len(epochs)} epochs, {len(accuracy)} values")
        curves[str(method)] = {"epochs": epochs, "accuracy": accuracy}
    return curves


def read_explicit(path: Path) -> list[Arm]:
    try:
        return [
            Arm(
                mu=float(arm["mu"]),
                lr=float(arm["lr"]),
                chosen=bool(arm["chosen"]),
                accuracy=[float(a) for a in arm["accuracy"]],
                gains=[float(gain) for gain in arm["gains"] if gain is not None],
            )
            for arm in read_optional(path).get("arms", [])
        ]
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"{path}: an arm is damaged ({first_line(error)})") from None
