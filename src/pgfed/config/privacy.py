"""The [privacy] table: of a simulation's experiment file, or of a site's own site.toml."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from pgfed.errors import UserError

Size = Annotated[int, Ge(1), Le(10**9)]


@dataclass(frozen=True)
class Privacy:
    """What leaves a client says little about any one unit. Off unless epsilon or noise_multiplier
    is given."""

    epsilon: Annotated[
        Annotated[float, Gt(0), Le(1000)] | None, "what may be spent; the noise follows from it"
    ] = None
    delta: Annotated[float, Gt(0), Lt(1), "must be below 1 / size"] = 1e-5
    clip: Annotated[float, Gt(0), "C, bound on the gradient of one unit"] = 1.0
    noise_multiplier: Annotated[
        Annotated[float, Ge(0), Le(1e6)] | None,
        "sigma, noise over clip, instead of one that follows from epsilon; 0: no promise",
    ] = None
    unit: Annotated[
        Literal["record", "group"] | None,
        "what is protected: a row, or all rows of a patient; group where the data has groups",
    ] = None
    size: Annotated[
        Size | None,
        "units in the training data, as told to others; the number rounded down to two digits",
    ] = None
    size_test: Annotated[Size | None, "likewise of the test data"] = None
    loss_scale: Annotated[
        Annotated[float, Gt(0)] | None,
        "L, bound on a unit's loss where losses are summed; 2 ln(classes); regression must say",
    ] = None
    personal: Annotated[
        Literal["at-home", "private"],
        "parts that nothing sent depends on: trained exactly and kept, or charged like the rest",
    ] = "at-home"
    participations: Annotated[
        Annotated[int, Ge(1), Le(1_000_000)] | None,
        "rounds that a client takes part in at most; as often as it is drawn",
    ] = None
    without: Annotated[
        list[str], "in a simulation: methods that run without privacy, to see what it costs"
    ] = field(default_factory=list)

    def __post_init__(self) -> None:
        for key in ("participations", "without"):
            if getattr(self, key) and not self.on:
                raise UserError(
                    f"privacy.{key}: found, but neither privacy.epsilon nor "
                    "privacy.noise_multiplier is; give one"
                )

    @property
    def on(self) -> bool:
        return self.epsilon is not None or self.noise_multiplier is not None


@dataclass(frozen=True)
class SitePrivacy(Privacy):
    """A site's own: with the ledger in which everything that leaves is charged."""

    ledger: Annotated[str | None, "the folder of the ledger; beside the data, as DATA.privacy"] = (
        None
    )
    scores: Annotated[
        Literal["withheld", "end"],
        "of this site's models for the server: none, or once after the last round, noisy and "
        "charged",
    ] = "withheld"
    run_epsilon: Annotated[
        Annotated[float, Gt(0), Le(1000)] | None,
        "what one run may spend of epsilon; all that is left",
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.without:
            raise UserError("privacy.without: is for simulations; at a site nothing leaves without")
        if self.run_epsilon is not None and self.run_epsilon > (self.epsilon or 0.0):
            raise UserError(
                f"privacy.run_epsilon: found {self.run_epsilon:g}; allowed: up to privacy.epsilon, "
                f"found {self.epsilon}"
            )
