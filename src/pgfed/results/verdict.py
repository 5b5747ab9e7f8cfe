"""The first screen in words: did federating help, whom, and what did PGFed itself add?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pgfed.results.comparison import FAMILY, Group, Method, different_settings
from pgfed.results.differences import between, difference, meaning, signed
from pgfed.results.formats import count, percent
from pgfed.results.sentence import CONTROL, one_per_round
from pgfed.results.statistics import Comparison, Gain

FEW = 10  # clients, below which a bootstrap over them is crude


@dataclass(frozen=True)
class Verdict:
    headline: str
    sentences: list[str]
    caveats: list[str]


def judge(group: Group) -> Verdict:
    """Everything the numbers allow to be said in a few sentences."""
    if not group.ranked:
        return Verdict(
            "No client has test data, so nothing can be said about accuracy.", [], caveats(group)
        )
    if len(group.clients) == 1:
        return Verdict("One client: there is nothing to federate.", [], caveats(group))
    sound = [method for method in group.ranked if method.sound]
    if not sound or any(m.base == "local" and m not in sound for m in group.ranked):
        headline = "Training failed, so it cannot be said whether federating helps."
        return Verdict(headline, [], caveats(group))
    headline, sentences = _help(group, sound)
    return Verdict(
        headline,
        [*sentences, *_ties(group, sound), *_explicit(group, sound)],
        caveats(group),
    )


def _help(group: Group, ranked: list[Method]) -> tuple[str, list[str]]:
    leader = ranked[0]
    score = percent(_last10(leader))
    if leader.base == "local":
        others = [method for method in ranked if method.base != "local"]
        if not others:
            return f"Training alone reaches {score}; no other method was run.", []
        headline = f"Federating did not help: nothing beats training alone ({score})."
        standing = _standing(group, others[0])
        return headline, [_upper(standing.sentence)] if standing else []
    standing = _standing(group, leader)
    if standing is None:
        verb = "scores highest" if len(ranked) > 1 else "was run alone"
        return f"{leader.label} {verb} ({score}).", [
            "There is no run of Local under the same seeds, so it cannot be said who gained: "
            "add local to the methods."
        ]
    sure = next(
        (
            found
            for method in ranked
            if (found := _standing(group, method)) is not None and found.compared.low > 0
        ),
        None,
    )
    if sure is not None:
        headline = f"Federating helped {sure.gain.gained:,} of {sure.clients:,} clients."
        also = [] if sure.method is leader else [f"Highest, but less surely: {standing.sentence}"]
        return headline, [_upper(sure.sentence), *sure.harm, *also]
    headline = "Federating made no clear difference on average."
    if standing.compared.high < 0:
        headline = f"Federating harmed {standing.gain.harmed:,} of {standing.clients:,} clients."
    return headline, [_upper(standing.sentence), *standing.harm]


@dataclass(frozen=True)
class _Standing:
    """A method against training alone."""

    method: Method
    sentence: str
    harm: list[str]
    gain: Gain
    compared: Comparison

    @property
    def clients(self) -> int:
        return self.gain.gained + self.gain.harmed + self.gain.unchanged


def _standing(group: Group, method: Method) -> _Standing | None:
    gain, local = group.gain(method), group.local(method)
    compared = None if local is None else group.compare(method, local)
    if gain is None or local is None or compared is None:
        return None
    sentence = (
        f"with {method.label}, {percent(_last10(local))} alone becomes {percent(_last10(method))}: "
        f"{difference(compared)} points on average over the clients ({between(compared)}); "
        f"{count(gain.gained, 'client')} gained, {gain.harmed:,} lost, "
        f"{gain.unchanged:,} unchanged."
    )
    harm = []
    if gain.harmed:
        worst = int(np.nanargmin(gain.per_client))
        harm.append(
            f"Client {group.clients.names[worst]} lost most, {signed(gain.per_client[worst])} "
            f"points; the worst-off tenth of the clients is at {signed(gain.worst_decile)}."
        )
    return _Standing(method, sentence, harm, gain, compared)


def _ties(group: Group, ranked: list[Method]) -> list[str]:
    """Who cannot be told apart from the leader: a ranking without this is a rumour."""
    leader, *others = ranked
    tied = [
        method.label
        for method in others
        if (found := group.compare(leader, method)) is not None and not found.clear
    ]
    if not tied:
        return []
    names = ", ".join(tied[:-1]) + (" and " if len(tied) > 1 else "") + tied[-1]
    return [f"{leader.label} leads, but {names} cannot be told apart from it here."]


def _explicit(group: Group, ranked: list[Method]) -> list[str]:
    """PGFed never stands alone: its control is PGFed without the explicit objective."""
    family = [method for method in ranked if method.base in FAMILY]
    if not family:
        return []
    method = next((m for m in family if m.name == "pgfed"), family[0])
    control = group.control(method)
    if control is not None and control not in ranked:
        return []  # it failed, and the caveats say so
    found = None if control is None else group.compare(method, control)
    if control is None or found is None:
        return [
            f"The run lacks {CONTROL}, PGFed's control with mu = 0, so it cannot be said what the "
            f"explicit objective contributes: add {CONTROL} to the methods."
        ]
    return [
        f"PGFed's explicit objective itself: {method.label} minus its control {control.label} "
        f"(mu = 0) is {difference(found)} points ({between(found)}): {meaning(found)}."
    ]


def caveats(group: Group) -> list[str]:
    """What a careful reader would ask."""
    told = [line for method in group.methods for line in method.troubles()]
    seeds = {len(method.runs) for method in group.methods}
    if seeds == {1}:
        told.append("One seed: intervals speak about other clients, not about other seeds.")
    if len(group.clients) < FEW:
        told.append(f"Only {count(len(group.clients), 'client')}: take the intervals as rough.")
    clients = len(group.clients)
    told += one_per_round(group.folders[0].experiment.cohort_size(clients), clients)
    rounds = {method.settings["rounds"] for method in group.methods}
    if len(rounds) > 1:
        told.append(f"Methods ran for different numbers of rounds ({_list(rounds)}).")
    for method in group.methods:
        control = group.control(method)
        if control is not None and (keys := different_settings(method, control)):
            told.append(
                f"{method.label} and its control {control.label} also differ in {', '.join(keys)}."
            )
    without = int((group.clients.n_test == 0).sum())
    if without:
        told.append(f"{count(without, 'client')} without test data left out of every mean.")
    for folder in group.folders:
        told += [
            f"{method}, seed {seed}, has not finished ({count(done, 'round')} of "
            f"{folder.experiment.rounds} done) and is left out."
            for method, seed, done in folder.unfinished
        ]
    return told


def _upper(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _last10(method: Method) -> float:
    return float(np.mean(method.accuracy("last10")))


def _list(values: set[int]) -> str:
    return ", ".join(str(value) for value in sorted(values))
