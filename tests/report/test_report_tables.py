"""The tables' numbers, by hand, and their files."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from pgfed.errors import UserError
from pgfed.paper import printed as paper
from pgfed.report import text as formats
from pgfed.report.rendering import Format, read, render
from pgfed.report.tables.against_paper import against_paper, domains_against_paper
from pgfed.report.tables.cells import Cell, Column, Table
from pgfed.report.tables.clients import domains, gains
from pgfed.report.tables.federation import dropped, sites
from pgfed.report.tables.matrix import matrix
from pgfed.report.tables.results import control, overview, results, speed
from pgfed.results.comparison import Group
from report.folders import make_folder


def column(table: Table, key: str) -> dict[str, str]:
    records = zip(table.labels, table.records(), strict=True)
    return {label: record[key].text for label, record in records}


def test_results_by_hand(group: Group) -> None:
    table = results(group)
    by_name = {m.name: m for m in group.methods}
    kept = 100 * by_name["pgfed"].scores("kept").mean(axis=1)
    assert column(table, "kept")["pgfed"] == f"{kept.mean():.1f} ± {kept.std(ddof=1):.1f}"
    gain = by_name["pgfed"].scores("kept") - by_name["local"].scores("kept")
    assert column(table, "gain")["pgfed"].startswith(f"{100 * gain.mean():+.1f} [")
    for name, key in (("pgfed", "gained"), ("fedavg", "lost")):
        found = group.gain(by_name[name])
        assert found is not None
        said = found.statements.count("clearly gained" if key == "gained" else "clearly lost")
        assert column(table, key)[name] == str(said)
        assert said > 0
    assert column(table, "gain")["local"] == "–"
    assert column(table, "sent") == {
        "local": "0 B (0.00)",
        "fedavg": "4 MB (1.00)",
        "fedavg-local": "4 MB (1.00)",
        "pgfed": "10 MB (2.50)",
    }


def test_the_control_is_beside_pgfed_with_its_interval(group: Group) -> None:
    table = control(group)
    assert column(table, "control") == {"pgfed": "fedavg-local"}
    by_name = {m.name: m for m in group.methods}
    found = group.compare(by_name["pgfed"], by_name["fedavg-local"])
    assert found is not None
    assert found.low < found.mean < found.high
    text = column(table, "difference")["pgfed"]
    assert text.count(",") == 1
    assert text.startswith(f"{100 * found.mean:+.2f}".replace("-", "−"))


def test_a_missing_control_is_said(tmp_path: Path) -> None:
    (group,) = read([make_folder(tmp_path / "a", methods=["local", "pgfed"])])
    assert column(control(group), "meaning") == {"pgfed": "not in the run: add it"}


def test_gains_by_hand(group: Group) -> None:
    by_name = {m.name: m for m in group.methods}
    gain = (by_name["fedavg"].scores("kept") - by_name["local"].scores("kept")).mean(axis=0)
    table = gains(group)
    assert column(table, "mean")["fedavg"] == f"{100 * gain.mean():+.1f}".replace("-", "−")
    assert column(table, "std")["fedavg"] == f"{100 * gain.std(ddof=1):.1f}"
    assert column(table, "worst_decile")["fedavg"] == f"{100 * gain.min():+.1f}".replace("-", "−")
    assert "local" not in table.labels


def test_rounds_to_an_accuracy(group: Group) -> None:
    table = speed(group)
    (pgfed,) = [m for m in group.methods if m.name == "pgfed"]
    for target in (0.5, 0.6, 0.7):
        reached = next(
            t
            for t, a in zip(pgfed.mean_curve.rounds, pgfed.mean_curve.score, strict=True)
            if a >= target
        )
        assert column(table, f"to_{100 * target:.0f}")["pgfed"].split()[0] == str(reached)
    assert column(table, "to_70")["fedavg"] == "– (–, –)"


def test_domains_are_means_over_their_clients(tmp_path: Path) -> None:
    (group,) = read([make_folder(tmp_path / "a", clients=8, domains=["Art", "Clipart"])])
    table = domains(group)
    (local,) = [m for m in group.methods if m.name == "local"]
    art = 100 * local.scores("best")[:, ::2].mean(axis=1)
    assert column(table, "Art")["local"].split()[0] == f"{art.mean():.1f}"


def test_dropped_replies_are_counted(tmp_path: Path) -> None:
    lost = [{"client": 3, "reason": "lost"}, {"client": 4, "reason": "not finite: w"}]
    (group,) = read([make_folder(tmp_path / "a", methods=["local"], dropped=lost)])
    (record,) = dropped(group).records()
    assert {key: cell.text for key, cell in record.items()} == {
        "method": "local",
        "replies": "4",
        "clients": "3, 4",
        "reasons": "2 × lost; 2 × not finite: w",
    }


def test_many_clients_and_reasons_are_cut_short(tmp_path: Path) -> None:
    """A norm that is too large is told with its value: every reply has a reason of its own."""
    lost = [{"client": i, "reason": f"w: norm {i}, allowed at most 1"} for i in range(2, 12)]
    lost.append({"client": 2, "reason": "no reply"})
    (group,) = read([make_folder(tmp_path / "a", methods=["local"], seeds=[0], dropped=lost)])
    (record,) = dropped(group).records()
    assert record["replies"].text == "11"
    assert record["clients"].text == "2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
    reasons = record["reasons"].text
    assert reasons.count("norm") == 8 - reasons.count("no reply")
    assert reasons.endswith("3 × others")


def test_sites_of_a_federation_over_flower(tmp_path: Path) -> None:
    lost = [{"client": 1, "reason": "no reply within 5 s"}]
    folder = make_folder(
        tmp_path / "a",
        methods=["local", "pgfed"],
        clients=8,
        rounds=4,
        labels=[f"clinic {k}" for k in "ABCDEFGH"],
        dropped=lost,
        flower=True,
    )
    (group,) = read([folder])
    table = sites(group)
    assert [[cell.text for cell in row] for row in table.rows] == [
        # Two seeds of four rounds; the first answer of each takes a second longer.
        [
            *("clinic A", "pgfed", "8", "8", "2.25 s", "3 s", "12 s", "8 kB", "24 kB"),
            "2 × not scored: the site went away",
        ],
        [
            *("clinic B", "pgfed", "8", "6", "3.33 s", "4 s", "9 s", "8 kB", "18 kB"),
            "2 × no reply within 5 s",
        ],
    ]
    assert "## Site by site" in render([group], Format.md)
    page = render([group])
    assert 'id="sites-table"' in page
    assert 'id="dropped-table"' in page
    methods, by_site = render([group], Format.csv).split("\n\n")
    assert [row["replies_dropped"] for row in csv.DictReader(io.StringIO(methods))] == ["2", "2"]
    first, second = csv.DictReader(io.StringIO(by_site))
    assert (first["site"], first["method"], first["slowest"]) == ("clinic A", "pgfed", "3.0")
    assert (second["bytes_up"], second["failures"]) == ("18000", "2 × no reply within 5 s")


def test_simulations_have_no_sites(group: Group) -> None:
    assert not sites(group)
    assert "Site by site" not in render([group], Format.md)
    assert "\n\n" not in render([group], Format.csv)


def test_no_dropped_replies_no_table(group: Group) -> None:
    assert not dropped(group)


def test_the_matrix_has_a_row_per_run_and_its_controls(group: Group) -> None:
    table = matrix(group)
    first, second = table.records()
    assert (first["run"].text, second["run"].text) == ("pgfed, seed 0", "pgfed, seed 1")
    (pgfed,) = [m for m in group.methods if m.name == "pgfed"]
    found = group.helpfulness(pgfed, pgfed.runs[0])
    assert found is not None
    r = np.corrcoef(group.clients.n_train, found.column)[0, 1]
    assert first["column_size"].text.startswith(f"{r:+.2f} (p")


# -- the paper ---------------------------------------------------------------------------------


def test_the_papers_numbers_are_all_there() -> None:
    content = paper.tables()
    assert len(content["main_results"]) == 84
    assert len(content["organamnist"]) == 33
    assert len(content["officehome"]) == 55
    names = {row["method"] for row in content["main_results"]}
    assert names < set(paper.METHODS.values())


def test_the_paper_stands_beside_a_run_of_its_setting(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path / "a",
        methods=["local", "fedavg", "fedavg-local", "pgfed"],
        clients=25,
        dataset="cifar10",
    )
    (group,) = read([folder])
    table = against_paper(group)
    assert column(table, "accuracy_paper") == {
        "local": "72.40 ± 0.45",
        "fedavg": "65.07 ± 0.25",
        "pgfed": "81.02 ± 0.41",
    }
    assert column(table, "gain_paper")["fedavg"] == "−8.99 ± 10.36"
    assert column(table, "rounds_paper")["pgfed"] == "9"
    assert column(table, "sent_paper")["pgfed"] == "2.50"
    assert column(table, "sent")["pgfed"] == "2.50"
    assert "speed_paper" not in table.records()[0]  # printed for 50 clients only
    assert paper.differences(group, group.methods[0]) == [
        "rounds 20 (paper 300)",
        "seeds 2 (paper 3)",
        "learning rate 0.005 (not on the paper's grid)",
        "batch size 10 (the paper does not say)",
    ]


def test_fifty_clients_are_the_papers_and_speeds_are_not_told_from_a_run(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path / "a", methods=["fedavg", "pgfed-ce"], clients=50, dataset="cifar10"
    )
    (group,) = read([folder])
    table = against_paper(group)
    assert not any("speed" in one.key for one in table.columns)
    assert column(table, "accuracy_paper")["pgfed-ce"] == "81.16 ± 0.56"


def test_office_home_by_domain(tmp_path: Path) -> None:
    names = ["Art", "Clipart", "Product", "Real_World"]
    folder = make_folder(tmp_path / "a", clients=20, dataset="office-home", domains=names)
    (group,) = read([folder])
    assert column(against_paper(group), "accuracy_paper")["local"] == "30.79 ± 0.23"
    table = domains_against_paper(group)
    assert column(table, "Real_World_paper")["local"] == "24.50 ± 0.21"


def test_other_data_have_no_paper_beside_them(group: Group) -> None:
    assert not against_paper(group)
    assert "Beside the paper" not in render([group])
    assert not domains_against_paper(group)


# -- files -------------------------------------------------------------------------------------


def test_csv_has_plain_numbers(group: Group) -> None:
    rows = list(csv.DictReader(io.StringIO(render([group], Format.csv))))
    assert [row["method"] for row in rows] == ["local", "fedavg", "fedavg-local", "pgfed"]
    (pgfed,) = [m for m in group.methods if m.name == "pgfed"]
    assert float(rows[3]["kept"]) == pytest.approx(pgfed.scores("kept").mean(), abs=1e-6)
    assert float(rows[3]["gain_low"]) < float(rows[3]["gain"]) < float(rows[3]["gain_high"])
    assert float(rows[3]["over_control_low"]) < float(rows[3]["over_control_high"])
    assert rows[0]["gain"] == ""
    assert float(rows[3]["bytes"]) == 10_000_000


def test_markdown_rows_are_as_wide_as_the_heading(group: Group) -> None:
    text = render([group], Format.md)
    assert "**Federating helped" in text
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in lines}) <= 1
    assert "| fedavg-local (control) |" in text


def test_latex_is_balanced_and_escaped(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a", domains=["a_b", "c&d"])
    text = render(read([folder]), Format.latex)
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") >= 4
    assert r"a\_b" in text
    assert r"c\&d" in text
    for line in text.splitlines():
        if line.endswith(r"\\"):
            assert "%" not in line.replace(r"\%", "")
            assert line.replace(r"\_", "").count("_") == 0


def test_latex_is_ready_for_a_paper(group: Group) -> None:
    text = render([group], Format.latex, "results")
    assert text.count(r"\begin{table}") == 1
    assert r"\label{tab:results}" in text
    assert "digits, 12 clients; 20 rounds; 2 seeds (0, 1)." in text
    rows = {line.split(" & ")[0]: line for line in text.splitlines() if line.endswith(r"\\")}
    assert {"Local (baseline)", "FedAvg", "FedAvgLocal (control)", "PGFed"} < set(rows)
    best = max(group.methods, key=lambda m: float(m.means("kept")[0] + m.means("kept")[1]))
    mean = 100 * np.mean(best.means("kept"))
    assert rf"\textbf{{{mean:.1f}}} $\pm$" in rows[paper.printed_name(best.name, best.label)]
    assert r"\textbf" not in rows["Local (baseline)"]


def test_an_unknown_table_is_one_line_with_those_there_are(group: Group) -> None:
    with pytest.raises(UserError, match=r"--table: unknown 'result'.*results"):
        render([group], Format.latex, "result")
    with pytest.raises(UserError, match="--table: found with --format csv; allowed: with"):
        render([group], Format.csv, "results")
    assert render([group], Format.md, "control").startswith("| Method | Control |")


def test_methods_are_called_as_papers_do() -> None:
    assert paper.printed_name("pgfed-mo", "pgfed-mo [2]") == "PGFedMo [2]"
    assert paper.printed_name("fedavg-ft", "fedavg-ft") == "FedAvgFT"
    assert paper.printed_name("mine", "mine") == "mine"


def test_markdown_of_hostile_names() -> None:
    cell = Cell("a|b*c <script>\n`x`")
    table = Table("t", "c", [Column("m", "M", "", Cell)], [[cell]], ["a"])
    line = formats.markdown(table).splitlines()[2]
    assert line == r"| a\|b\*c \<script\> \`x\` |"


def test_several_federations_side_by_side(tmp_path: Path) -> None:
    a = make_folder(tmp_path / "a", methods=["local", "fedavg"])
    b = make_folder(tmp_path / "b", methods=["local"], fingerprint="b" * 64, clients=7)
    groups = read([a, b])
    table = overview(groups)
    assert table.labels == ["local", "fedavg"]
    shown = column(table, "digits, 7 clients")
    assert {label: text == "–" for label, text in shown.items()} == {"local": False, "fedavg": True}
    assert "## All federations" in render(groups, Format.md)
