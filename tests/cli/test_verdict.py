"""The table and the verdict at the end of a run: the terminal says what the page says."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from pgfed.cli.terminal.experiment import outcome_rows, outcomes
from pgfed.cli.terminal.tables import prose, table
from pgfed.config.experiment import from_dict, make_methods
from pgfed.methods import registry as algorithms
from pgfed.model.metrics import ACCURACY, METRICS
from pgfed.results.comparison import Group, group
from pgfed.results.folder.history import history_of
from pgfed.results.formats import count, duration, gain, percent, score, size
from pgfed.results.runs import Clients, RunData, SeedRun, method_info
from pgfed.results.verdict import Verdict, judge, own_gain
from report.folders import evidence

ROUNDS = 12
SAMPLES = 40  # test samples of each client


def outcome(
    method: str,
    shares: list[float],
    seed: int = 0,
    refused: int = 0,
    diverged: int = 0,
    rounds: int = ROUNDS,
    rising: bool = False,
    seen: bool = True,
) -> SeedRun:
    """A run whose clients end with these shares of their test samples right."""
    scores = np.array(shares)
    mean = None if np.isnan(scores).all() else float(np.nanmean(scores))
    records = []
    for t in range(1, rounds + 1):
        grown = t / rounds if rising else 1.0
        record = {"round": t, "mean_score": None if mean is None else mean * grown}
        record |= {"samples": 90, "train_seconds": 0.5, "seconds": 1.0}
        record |= {"bytes_down": 1000, "bytes_up": 500, "cohort": list(range(len(shares)))}
        dropped = [{"client": i, "reason": "w: holds NaN"} for i in range(refused)]
        records.append(record | {"dropped": dropped} | ({"diverged": diverged} if diverged else {}))
    each = {"best": scores, "final": scores, "mean": scores}
    held = evidence(scores, np.where(np.isnan(scores), 0, SAMPLES)) if seen else None
    return SeedRun(method, seed, history_of(records), each, evidence=held)


def data(*outcomes: SeedRun) -> RunData:
    methods = list(dict.fromkeys(run.method for run in outcomes))
    seeds = sorted({run.seed for run in outcomes})
    runs: dict[str, dict[int, SeedRun]] = {method: {} for method in methods}
    for run in outcomes:
        runs[run.method][run.seed] = run
    final = outcomes[0].scores["final"]
    n_test = np.where(np.isnan(final), 0, SAMPLES)
    n = len(final)
    asked = from_dict({"methods": methods, "seeds": seeds, "rounds": ROUNDS, "cohort": 1.0})
    return RunData(
        path=Path("run"),
        experiment=make_methods(asked)[1],
        environment={},
        clients=Clients(np.full(n, 10), n_test, [str(i) for i in range(n)], None, None, []),
        metric=ACCURACY,
        methods={m: method_info(m, algorithms.get(m), algorithms.summary(m)) for m in methods},
        runs=runs,
    )


def grouped(*outcomes: SeedRun) -> Group:
    (found,) = group([data(*outcomes)])
    return found


def verdict(*outcomes: SeedRun) -> Verdict:
    return judge(grouped(*outcomes))


LOCAL = [0.5, 0.5, 0.75, 0.5]
BETTER = [0.75, 0.5, 0.5, 1.0]  # two gain, one loses, all of them clearly
SURELY = [0.75, 0.75, 0.95, 0.8]
A_BIT = [0.525, 0.525, 0.775, 0.525]  # one sample each
LOCAL0 = [*LOCAL, float("nan")]


def test_errors_in_the_targets_unit_are_written_out() -> None:
    error = METRICS["mae"]
    assert score(19_563.7, error) == "19,560"
    assert score(9_731.2, error) == "9,731"
    assert score(0.012345, error) == "0.01235"
    assert score(3.2e15, error) == "3.2e+15"
    assert gain(-243_703, error) == "−244,000"
    assert gain(999_999, error) == "+1,000,000"


def test_rows_are_means_over_the_seeds() -> None:
    found = grouped(
        outcome("local", LOCAL),
        outcome("local", LOCAL, seed=1),
        outcome("pgfed", BETTER),
        outcome("pgfed", LOCAL, seed=1),
    )
    rows = outcome_rows(found)
    assert [row[0] for row in rows] == ["local", "pgfed"]
    assert rows[0][3] == ""
    assert rows[1] == ["pgfed", "62.5 %", "62.5 %", "+6.2", "2", "1", "18 kB"]


def test_clients_are_counted_by_their_mean_over_the_seeds() -> None:
    """The last one gains twenty samples under one seed and loses ten under the other."""
    found = verdict(
        outcome("local", LOCAL),
        outcome("local", LOCAL, seed=1),
        outcome("pgfed", BETTER),
        outcome("pgfed", [0.5, 0.5, 0.5, 0.25], seed=1),
    )
    assert (found.gained, found.lost, found.untold) == (1, 1, 2)


def test_federating_helped() -> None:
    found = verdict(outcome("local", LOCAL), outcome("pgfed", SURELY))
    assert found.headline == "Federating helped: 4 of 4 clients clearly gained, none clearly lost."
    assert (found.outcome, found.method, found.baseline) == ("helped", "pgfed", "local")
    assert str(found) == found.headline
    assert found.sentences[0].startswith(
        "With pgfed, accuracy goes from 56.2 % without the others (local) to 81.2 %: +25.0 points"
    )
    assert "3 (+30.0 points, 12 better of 40 samples)" in found.sentences[1]


def test_one_sample_each_is_no_evidence_of_any_client() -> None:
    """By the sign all four gained: with one sample of forty each."""
    found = verdict(outcome("local", LOCAL), outcome("pgfed", A_BIT))
    assert (found.gained, found.lost, found.untold) == (0, 0, 4)
    assert found.outcome == "no-clear-difference"
    assert "Federating helped" not in " ".join(found.lines)
    assert "+2.5 points" in found.sentences[0]


def test_many_small_gains_are_clear_on_average_and_of_nobody() -> None:
    local = [0.5] * 20
    found = verdict(outcome("local", local), outcome("pgfed", [0.525] * 10 + [0.55] * 10))
    assert found.headline == "Federating helped on average; for no single client can it be told."
    assert (found.outcome, found.gained, found.untold) == ("helped", 0, 20)


def test_who_gains_clearly_is_not_hidden_by_the_average() -> None:
    found = verdict(outcome("local", LOCAL), outcome("pgfed", [0.75, 0.475, 0.725, 0.5]))
    assert found.headline.startswith("Federating helped 1 of 4 clients clearly; ")
    assert found.outcome == "helped"


def test_what_helps_some_and_harms_others_is_neither() -> None:
    found = verdict(outcome("local", LOCAL), outcome("pgfed", BETTER))
    assert found.headline == (
        "No clear difference on average: 2 of 4 clients clearly gained, 1 clearly lost; for 1 it "
        "cannot be told."
    )
    assert "Clearly lost: client 2 (−25.0 points, 10 worse of 40 samples)." in found.sentences
    assert "(95 % interval −" in found.sentences[0]


def test_without_evidence_nobody_is_counted() -> None:
    found = verdict(outcome("local", LOCAL, seen=False), outcome("pgfed", SURELY, seen=False))
    assert found.headline == "Federating helped on average."
    assert (found.gained, found.lost, found.untold) == (None, None, None)
    assert any("the sign of a difference is no evidence" in line for line in found.caveats)


def test_who_helps_surely_comes_before_who_may_help_more() -> None:
    high = [1.0, 1.0, 0.5, 1.0]
    runs = [outcome("local", LOCAL), outcome("apfl", high)]
    found = verdict(*runs, outcome("fedrod", SURELY))
    assert found.method == "fedrod"
    assert found.sentences[0].startswith("With fedrod,")
    assert any(line.startswith("Highest, but less surely: with apfl") for line in found.sentences)


def test_clients_without_test_data_are_not_counted() -> None:
    found = verdict(outcome("local", LOCAL0), outcome("pgfed", [*SURELY, float("nan")]))
    assert found.headline == "Federating helped: 4 of 4 clients clearly gained, none clearly lost."
    assert "1 client without test data left out of every mean." in found.caveats


def test_one_client_has_nobody_to_federate_with() -> None:
    found = verdict(outcome("local", [0.5]), outcome("pgfed", [0.75]))
    assert found.headline == "One client: there is nothing to federate."


def test_methods_that_failed_are_named_and_not_judged() -> None:
    local = outcome("local", LOCAL)
    failed = outcome("pgfed", [0.9] * 4, refused=4)
    found = verdict(local, failed, outcome("fedavg", SURELY, refused=1))
    assert "pgfed: 48 of 48 replies did not count (w: holds NaN); lower train.lr." in found.caveats
    assert "fedavg: 12 of 48 replies did not count (w: holds NaN); lower train.lr." in found.caveats
    assert found.sentences[0].startswith("With fedavg,")
    assert verdict(local, failed).headline.startswith("Training alone (local) reaches")
    once = [outcome("pgfed", SURELY), outcome("pgfed", SURELY, seed=1, refused=4)]
    both = [local, outcome("local", LOCAL, seed=1)]
    assert verdict(*both, *once).headline.startswith("Training alone (local) reaches")
    alone = outcome("local", LOCAL, diverged=3)
    found = verdict(alone, outcome("fedavg", SURELY))
    assert found.headline.startswith("Training failed")
    assert "local: training diverged to NaN for 3 clients; lower train.lr." in found.caveats


def test_a_method_is_held_against_its_control_with_an_interval() -> None:
    runs = [outcome("local", LOCAL), outcome("pgfed", BETTER)]
    found = verdict(*runs, outcome("fedavg-local", SURELY))
    assert found.sentences[-2].startswith(
        "Against its control fedavg-local, the same without what it claims, pgfed itself adds "
        "−12.5 points (95 % interval −"
    )
    assert found.sentences[-1].startswith(
        "So what helped is what fedavg-local does, too (FedAvg's common model, trained further by "
        "each client): +25.0 points over local (95 % interval +"
    )


def test_each_control_is_a_question_of_its_own() -> None:
    """PGFed's kin have one; what is clearly better than its control needs no other reason."""
    kin = [outcome(name, SURELY) for name in ("fedavg-local", "pgfed", "pgfed-mo", "pgfed-ce")]
    found = verdict(outcome("local", LOCAL), *kin, outcome("fedavg-framed", [1.0] * 4))
    frame, pgfed = [s for s in found.sentences if "control" in s]
    assert frame.startswith(
        "Against its control fedavg-local, the same without what it claims, fedavg-framed itself "
        "adds +18.8 points"
    )
    assert frame.endswith(": better.")
    assert pgfed == (
        "pgfed scores exactly as its control fedavg-local at every client: here it adds nothing."
    )
    assert not [line for line in found.lines if "So what helped" in line or "also differ" in line]


def test_what_did_not_help_is_not_said_to_have() -> None:
    runs = [outcome("local", LOCAL), outcome("fedavg-local", LOCAL), outcome("pgfed", A_BIT)]
    assert "pgfed itself adds" in verdict(*runs).sentences[-1]


def test_equal_means_of_other_scores_are_not_the_same() -> None:
    """One gains what another loses: nothing on average, and yet it does something."""
    swapped = [0.7, 0.8, *SURELY[2:]]
    runs = [outcome("local", LOCAL), outcome("fedavg-local", SURELY), outcome("pgfed", swapped)]
    text = " ".join(verdict(*runs).sentences)
    assert "pgfed itself adds +0.00 points" in text
    assert "exactly as its control" not in text


@pytest.mark.parametrize(("clients", "said"), [(29, False), (30, True)])
def test_a_tenth_of_few_clients_is_not_spoken_of(clients: int, said: bool) -> None:
    local = [0.5] * clients
    found = verdict(outcome("local", local), outcome("pgfed", [0.475] + [0.6] * (clients - 1)))
    (worst,) = [line for line in found.sentences if line.startswith("Worst off")]
    assert "client 0 (−2.5 points, 1 worse of 40 samples), which may be chance" in worst
    tenth = "the tenth of the clients that gained least is at +5.8 points on average"
    assert (tenth in worst) == said


def test_federating_harmed() -> None:
    found = verdict(outcome("local", LOCAL), outcome("pgfed", [v - 0.25 for v in LOCAL]))
    assert found.headline == "Federating harmed: 0 of 4 clients clearly gained, 4 clearly lost."
    assert found.outcome == "harmed"


def test_nothing_to_compare_with() -> None:
    assert "nothing else was run" in verdict(outcome("local", LOCAL)).headline
    assert "add alone or local" in verdict(outcome("pgfed", LOCAL)).sentences[0]
    unknown = [float("nan")] * 2
    assert "No client has test data" in verdict(outcome("local", unknown)).headline


# -- too short to judge --------------------------------------------------------------------------


def test_few_rounds_are_not_judged() -> None:
    runs = [outcome("local", LOCAL, rounds=5), outcome("pgfed", SURELY, rounds=5)]
    found = verdict(*runs)
    assert found.headline.startswith("Too short to judge")
    assert found.outcome == "cannot-be-told"
    assert "5 rounds of pgfed are too few" in found.sentences[0]
    assert (found.gained, found.lost) == (None, None)


def test_what_is_too_short_to_judge_is_not_compared_either() -> None:
    """Neither with a control, nor by rank, nor without a baseline."""
    short = [
        outcome(m, s, rounds=5)
        for m, s in (("local", LOCAL), ("fedavg-local", LOCAL), ("pgfed", SURELY))
    ]
    for runs in (short, short[1:]):
        found = verdict(*runs)
        assert found.headline.startswith("Too short to judge")
        assert not found.comparable
        assert not [line for line in found.lines if "adds" in line or "leads" in line]
    assert "add alone or local" in found.sentences[-1]


def terminal(runs: list[SeedRun], monkeypatch: pytest.MonkeyPatch) -> str:
    """What `pgfed run` ends with, colours and all."""
    screen = Console(file=io.StringIO(), force_terminal=True, width=100, color_system="standard")
    monkeypatch.setattr("pgfed.cli.terminal.experiment.console", lambda: screen)
    outcomes(data(*runs))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_a_run_without_a_verdict_colours_and_counts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same gains: evidence in a run that is long enough, numbers in one that is not."""
    lower = [v - 0.25 for v in LOCAL]
    each = (("local", LOCAL), ("fedavg", lower), ("pgfed", SURELY))
    long = terminal([outcome(m, s) for m, s in each], monkeypatch)
    assert "\x1b[32m" in long
    assert "\x1b[31m" in long
    runs = [outcome(m, s, rounds=5) for m, s in each]
    short = terminal(runs, monkeypatch)
    assert "Too short to judge" in short
    assert "+25.0" in short
    assert "\x1b[3" not in short  # no colour at all
    (found,) = group([data(*runs)])
    assert [row[4:6] for row in outcome_rows(found)] == [["", ""], ["–", "–"], ["–", "–"]]


def test_a_site_is_told_its_own_gain_but_not_of_a_short_run() -> None:
    found = grouped(outcome("local", LOCAL), outcome("pgfed", SURELY))
    of = found.gain(found.methods[-1])
    assert of is not None
    assert own_gain(of, ACCURACY).endswith("; 10 better of 40 samples): clearly gained")
    short = own_gain(replace(of, judged=False), ACCURACY)
    assert short.endswith("; 10 better of 40 samples): too short to judge")


def test_clients_that_hardly_took_part_are_not_judged() -> None:
    def rarely(run: SeedRun) -> SeedRun:
        records = [{**r, "cohort": [r["round"] % 4]} for r in run.history.records[:8]]
        return replace(run, history=history_of(records))

    found = verdict(rarely(outcome("local", LOCAL)), rarely(outcome("pgfed", SURELY)))
    assert found.outcome == "cannot-be-told"
    assert found.sentences[0] == "Clients took part in 2.0 rounds on average, fewer than 3."


def test_who_may_yet_catch_up_is_not_judged() -> None:
    """The lower one rose by more in its last third than it lacks."""
    found = verdict(outcome("local", LOCAL, rising=True), outcome("pgfed", A_BIT))
    assert found.outcome == "cannot-be-told"
    assert "local still rose by 18.8 points in the last third" in found.sentences[0]
    harmed = verdict(outcome("local", SURELY), outcome("pgfed", [0.7] * 4, rising=True))
    assert harmed.outcome == "cannot-be-told"


def test_what_cannot_be_caught_up_is_judged_and_the_rise_is_said() -> None:
    found = verdict(outcome("local", LOCAL, rising=True), outcome("pgfed", SURELY))
    assert found.outcome == "helped"
    assert any("local was still rising when the run ended" in line for line in found.caveats)


# -- attacks, imbalance --------------------------------------------------------------------------


def test_an_attacked_run_says_so_first_and_counts_the_same_clients_in_every_row() -> None:
    """Under attack client 3 is an attacker: it counts in no row, not even in a calm run's."""
    calm = data(outcome("local", LOCAL), outcome("pgfed", SURELY))
    bad = [outcome("local", LOCAL), outcome("pgfed", [0.5, 0.5, 0.5, 0.0])]
    bad = [replace(run, attackers=frozenset({3})) for run in bad]
    under = data(*bad)
    attack = {"methods": ["local", "pgfed"], "attack": {"kind": "sign-flip", "share": 0.25}}
    under = replace(under, path=Path("bad"), experiment=from_dict({**attack, "rounds": ROUNDS}))
    both = [replace(one, environment={"data": {"fingerprint": "f"}}) for one in (calm, under)]
    (found,) = group(both)
    said = judge(found)
    assert said.headline.startswith("Some of these runs were attacked (sign-flip")
    for method in found.methods:
        assert np.isnan(method.scores("kept")[:, 3]).all()
    best = max(found.methods, key=lambda m: m.mean())
    alone = found.baseline(best)
    assert alone is not None
    compared = found.compare(best, alone)
    assert compared is not None
    assert compared.mean == pytest.approx(best.mean() - alone.mean())


def test_models_that_know_one_class_are_named_and_the_largest_class_is_said() -> None:
    facts = {
        "majority": np.array([0.6, 0.6, 0.6, 1.0]),
        "predicted": np.array([2.0, 1.0, 2.0, 1.0]),
    }
    runs = [outcome("local", LOCAL), outcome("pgfed", SURELY)]
    found = verdict(runs[0], replace(runs[1], metrics=facts))
    said = " ".join(found.lines)
    assert "Always naming each client's largest class would give 70.0 %." in said
    assert "pgfed: 1 model (client 1) calls every test sample by one class." in said


def test_a_matrix_that_diverged_is_flagged() -> None:
    calm = {"alpha": np.full((4, 4), 0.25), "start": 0.25, "meetings": np.ones((4, 4), int)}
    wild = {**calm, "alpha": np.full((4, 4), 1e6)}
    runs = [outcome("local", LOCAL), outcome("pgfed", SURELY)]
    assert not any("matrix" in c for c in verdict(runs[0], replace(runs[1], matrix=calm)).caveats)
    found = verdict(runs[0], replace(runs[1], matrix=wild))
    assert "pgfed: its matrix of weights has diverged; do not read it." in found.caveats


def test_the_terminal_says_the_whole_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [outcome("local", LOCAL), outcome("fedavg-local", SURELY), outcome("pgfed", BETTER)]
    found = data(*runs)
    outcomes(found)
    said = capsys.readouterr().out.splitlines()
    expected = judge(group([found])[0])
    assert said[1 + len(runs) : -1] == expected.lines
    assert len(expected.sentences) > 1
    assert said[-1] == "Run folder: run"


@pytest.mark.parametrize("width", [58, 59, 60, 61, 62])
def test_a_terminal_wraps_at_words_and_keeps_numbers_with_their_sign(width: int) -> None:
    said = "fedavg-framed itself adds +0.68 points over its control (95 % interval −0.40 to +2.23)."
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with screen.capture() as captured:
        prose(screen, said)
    lines = captured.get().splitlines()
    assert len(lines) == 2
    assert all(len(line) <= width for line in lines)
    assert " ".join(lines) == said
    assert not lines[1].startswith("%")


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_breaks_no_name_in_two(width: int) -> None:
    columns = ["method", "accuracy", "last 10 rounds", "gain over local", "clearly gained", "lost"]
    row = ["fedavg-framed", "100.0 %", "100.0 %", "+12.3", "1,000", "1,000", "38.1 MB"]
    screen = Console(file=io.StringIO(), force_terminal=True, width=width)
    with screen.capture() as captured:
        screen.print(table([*columns, "sent"], [row, row]))
    rows = [line for line in captured.get().splitlines() if "38.1 MB" in line]
    assert all("fedavg-framed " in line for line in rows)
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (percent(0.12345), "12.3 %"),
        (percent(None), "–"),
        (gain(-0.02, ACCURACY), "−2.0"),
        (gain(-0.0001, ACCURACY), "+0.0"),
        (gain(-0.0204, METRICS["auc"]), "−0.020"),
        (gain(-1234.5, METRICS["mae"]), "−1,230"),
        (gain(None, METRICS["mae"]), "–"),
        (score(0.12345, ACCURACY), "12.3 %"),
        (score(0.12345, METRICS["auc"]), "0.123"),
        (score(-0.5, METRICS["r2"]), "−0.500"),
        (score(1234.5, METRICS["mae"]), "1,234"),
        (score(float("nan"), METRICS["mae"]), "–"),
        (size(0), "0 B"),
        (size(999), "999 B"),
        (size(1_234_000), "1.23 MB"),
        (size(5e13), "50 TB"),
        (duration(59), "59 s"),
        (duration(61), "1 min"),
        (duration(7200), "2.0 h"),
        (duration(200_000), "2.3 days"),
        (count(1, "client"), "1 client"),
        (count(1200, "client"), "1,200 clients"),
    ],
)
def test_words(said: str, expected: str) -> None:
    assert said == expected


def test_the_rows_are_in_the_order_that_was_asked_for() -> None:
    """As in the experiment file; the page sorts by kind."""
    asked = ["pgfed", "local", "fedavg-local"]
    found = grouped(*(outcome(method, [0.5, 0.6]) for method in asked))
    assert [row[0] for row in outcome_rows(found)] == asked
    assert [method.name for method in found.methods] != asked


def test_one_client_is_told_nothing_of_intervals() -> None:
    said = verdict(outcome("local", [0.5]), outcome("fedavg", [0.6]))
    assert said.lines == ["One client: there is nothing to federate."]
