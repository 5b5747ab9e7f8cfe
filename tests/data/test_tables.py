"""Tables: their schema, what it makes of rows, bad rows, and the model that takes them home."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import small_runs
from cli.conftest import pgfed as pgfed  # the command line, as a fixture
from pgfed.data import datasets
from pgfed.data.dataset import Options
from pgfed.data.federation import build
from pgfed.data.own import load
from pgfed.data.tables.proposal import Proposal, propose
from pgfed.data.tables.reading import Bad, frame, frames
from pgfed.data.tables.schema import Schema, from_plain
from pgfed.errors import UserError

HEAD = ["id", "customer", "amount", "channel", "chargeback", "fraud"]
SCHEMA = """
target = "fraud"
classes = ["no", "yes"]
positive = "yes"
drop = ["id", "chargeback", "customer"]
[numeric]
amount = {min = -1000, max = 1000}
[categorical]
channel = ["phone", "shop", "web"]
"""


def rows(bank: int, n: int = 40) -> list[list[object]]:
    rng = np.random.default_rng(bank)
    made = []
    for i in range(n):
        fraud = i % 4 == 0
        amount = f"{rng.normal(100 + 80 * fraud + 50 * bank, 20):.2f}" if i % 7 else "?"
        channel = rng.choice(["web", "shop"]) if bank else rng.choice(["web", "shop", "phone"])
        said = ["no", "yes"][fraud]
        made.append([1000 * bank + i, f"c{i // 2}", amount, channel, said.upper(), said])
    return made


def write(path: Path, content: list[list[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([HEAD, *content])
    return path


@pytest.fixture
def banks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for bank, name in enumerate(("alpha", "beta", "gamma")):
        write(tmp_path / "banks" / f"{name}.csv", rows(bank))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def schema(text: str = SCHEMA) -> Schema:
    return from_plain(tomllib.loads(text), "schema")


def message(text: str) -> str:
    with pytest.raises(UserError) as error:
        schema(text)
    return str(error.value)


def test_inputs_are_scikit_learns(banks: Path):
    """Scaling is each site's own, fitted on its training rows; categories are common."""
    for path in (banks / "banks").glob("*.csv"):
        table = pd.read_csv(path, keep_default_na=False)
        table["part"] = np.where(np.arange(40) % 4 == 3, "test", "train")
        table.to_csv(path, index=False)
    text = SCHEMA.replace('target = "fraud"', 'target = "fraud"\nsplit = "part"')
    made = build(load("csv:banks", None, Options(schema=schema(text))), partition="given")
    assert [str(label) for label in made.client_labels] == ["alpha", "beta", "gamma"]
    assert made.class_names == ("no", "yes")
    assert (made.positive, made.target_scaling) == ("yes", None)
    for i, name in enumerate(("alpha", "beta", "gamma")):
        table = pd.read_csv(banks / "banks" / f"{name}.csv", na_values="?")
        train = table["part"] == "train"
        scaler = StandardScaler().fit(table.loc[train, ["amount"]])
        filled = table[["amount"]].fillna(table.loc[train, "amount"].median())
        hot = OneHotEncoder(categories=[["phone", "shop", "web"]], sparse_output=False)
        expected = np.hstack([scaler.transform(filled), hot.fit_transform(table[["channel"]])])
        for part, which in ((made.train, train), (made.test, ~train)):
            found, wanted = part(i).x.numpy(), expected[which.to_numpy()]
            found, wanted = (m[np.lexsort(m.T)] for m in (found, wanted))
            assert np.allclose(found, wanted, atol=1e-5)


def test_what_the_schema_agrees_on_is_not_fitted(banks: Path):
    text = SCHEMA.replace("max = 1000", "max = 1000, mean = 100.0, scale = 50.0")
    made = build(load("csv:banks", None, Options(schema=schema(text))), partition="given")
    for fitted in made.fitted:
        assert fitted.numeric["amount"].fitted == (100.0, 50.0, 100.0)
    assert made.fitted[0] == made.fitted[1]


def test_categories_are_those_of_all_sites_training_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    content = rows(1, 12)
    content[-1][3] = "smoke signals"
    path = write(tmp_path / "one.csv", [[*row, "train"] for row in content[:-1]])
    text = (
        path.read_text()
        .replace("fraud\n", "fraud,split\n", 1)
        .replace("fraud\r\n", "fraud,split\r\n")
    )
    path.write_text(text + ",".join(map(str, [*content[-1], "test"])) + "\n")
    open_schema = SCHEMA.replace('["phone", "shop", "web"]', "[]").replace(
        'target = "fraud"', 'target = "fraud"\nsplit = "split"'
    )
    data = load(f"csv:{path}", None, Options(schema=schema(open_schema)))
    made = build(data, partition="iid", clients=1, min_samples=1)
    assert made.schema.categorical == {"channel": ["shop", "web"]}
    assert made.test(0).x[0, 1:].tolist() == [0.0, 0.0]
    assert "1 rows have a category of 'channel' that is not in the schema" in caplog.text


def test_a_site_without_a_single_number_has_zeros(tmp_path: Path):
    content = [[i, "c", "", "web", "", ["no", "yes"][i % 2]] for i in range(8)]
    path = write(tmp_path / "one.csv", content)
    made = build(
        load(f"csv:{path}", None, Options(schema=schema())),
        partition="iid", clients=1, min_samples=1,
    )  # fmt: skip
    assert not made.x[:, 0].any()


def test_all_bad_rows_are_told_at_once(banks: Path, caplog: pytest.LogCaptureFixture):
    content = rows(0)
    content[3][2] = "a lot"
    content[5][2] = "123456"
    content[8][5] = ""
    content[9][5] = "perhaps"
    path = write(banks / "bad.csv", content)
    path.write_text(path.read_text() + "1,2,3,4,5,6,7,8\n")
    with pytest.raises(UserError) as error:
        load(f"csv:{path}", None, Options(schema=schema()))
    text = str(error.value)
    assert "5 row(s) cannot be used" in text
    for part in (
        "bad.csv line 5: amount: found 'a lot'; allowed: -1000 to 1000",
        "bad.csv line 7: amount: found '123456'",
        "bad.csv line 10: fraud: no value; allowed: no, yes",
        "bad.csv line 11: fraud: found 'perhaps'; allowed: no, yes",
        "bad.csv line 42: expected 6 fields, saw 8",
        "--skip-bad (data.skip_bad = true)",
    ):
        assert part in text
    kept = load(f"csv:{path}", None, Options(schema=schema(), skip_bad=True))
    assert len(kept.y) == 36
    assert "5 row(s) left out" in caplog.text


def test_parquet_is_the_same(banks: Path):
    for path in sorted((banks / "banks").glob("*.csv")):
        table = pd.read_csv(path, na_values="?")
        target = banks / "parquet" / f"{path.stem}.parquet"
        target.parent.mkdir(exist_ok=True)
        table.to_parquet(target)
    one, two = (
        build(datasets.load(f"{kind}:{place}", None, schema=schema()), partition="given")
        for kind, place in (("csv", "banks"), ("parquet", "parquet"))
    )
    assert one.fingerprint == two.fingerprint


def test_whole_numbers_with_gaps_are_read_as_such(tmp_path: Path):
    table = pd.DataFrame({"code": [1, None, 2, 1], "y": [0, 1, 0, 1]})
    table.to_parquet(tmp_path / "t.parquet")
    plain = {"target": "y", "categorical": {"code": ["1", "2"]}}
    data = load(f"parquet:{tmp_path / 't.parquet'}", None, Options(schema=from_plain(plain, "s")))
    assert data.columns.levels == (("1", "2"),)


def test_targets_that_are_numbers(tmp_path: Path):
    table = pd.DataFrame({"a": [1.0, 2, 3, 4], "low": [0.5, 1, 2, 3], "high": [1, 2, 3, 4]})
    table.to_csv(tmp_path / "t.csv", index=False)
    plain = {"target": ["low", "high"], "numeric": {"a": {}}, "target_mean": [1.0, 2.0]}
    plain["target_scale"] = [0.5, 2.0]
    options = Options(targets="values", schema=from_plain(plain, "s"))
    data = load(f"csv:{tmp_path / 't.csv'}", None, options)
    assert data.y.tolist() == [[0.5, 1], [1, 2], [2, 3], [3, 4]]
    assert data.class_names == ("low", "high")
    made = build(data, partition="iid", clients=1, min_samples=1)
    assert made.target_scaling == ([1.0, 2.0], [0.5, 2.0])
    with pytest.raises(UserError, match="2 targets"):
        load(f"csv:{tmp_path / 't.csv'}", None, Options(schema=options.schema))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("target", "aim"), "aim: unknown key; allowed: target, classes"),
        (("classes", "clases"), "clases: unknown key (did you mean 'classes'?); allowed: target"),
        (("min = -1000", "least = 1"), "numeric.amount.least: unknown key; allowed: min, max"),
        (("max = 1000", "mean = 1"), "mean and scale go together"),
        (('positive = "yes"', 'positive = "maybe"'), "positive: found 'maybe'; allowed: no, yes"),
        (('"id", ', '"id", "amount", '), "column 'amount' stands in two places"),
        (('["no", "yes"]', '["no", "no"]'), "classes: each of its names once"),
        (('["no", "yes"]', "3"), "classes: Input should be a valid list"),
    ],
)
def test_a_schema_that_is_wrong_is_one_line(change: tuple[str, str], words: str):
    assert words in message(SCHEMA.replace(*change))


def test_a_column_that_is_not_there(banks: Path):
    with pytest.raises(UserError, match=r"alpha.csv: no column 'sum', which the schema names"):
        load("csv:banks", None, Options(schema=schema(SCHEMA.replace("amount", "sum"))))


def test_a_column_of_texts_is_one_mistake_not_one_per_row(banks: Path):
    text = SCHEMA.replace("[categorical]\n", "").replace('["phone", "shop", "web"]', "{}")
    said = r"alpha.csv: channel: none of its 40 rows holds a number, .*\[categorical\]"
    with pytest.raises(UserError, match=said):
        load("csv:banks", None, Options(schema=schema(text)))
    said = r'alpha.csv: fraud: none of its 40 rows .* the first has \'yes\'; task.kind = "classes"'
    with pytest.raises(UserError, match=said):
        load("csv:banks", None, Options(targets="values", schema=schema()))


def test_files_without_a_schema_have_the_same_columns_in_any_order(banks: Path):
    path = banks / "banks" / "beta.csv"
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    whole = load("csv:banks", None, Options())
    table[table.columns[::-1]].to_csv(path, index=False)
    turned = load("csv:banks", None, Options())
    assert np.array_equal(whole.x, turned.x, equal_nan=True)
    table.drop(columns="amount").assign(city="x").to_csv(path, index=False)
    said = r"beta.csv: other columns than .*alpha.csv: no column 'amount'; 'city' beside its"
    with pytest.raises(UserError, match=said):
        load("csv:banks", None, Options())


def test_a_path_without_its_kind_is_told(banks: Path):
    with pytest.raises(UserError, match=r"data.dataset: found 'banks'; .* 'csv:banks'"):
        datasets.load("banks", None)


def test_a_proposal_sees_types_patients_and_leaks(banks: Path, pgfed):
    found = pgfed("data", "schema", *sorted(str(p) for p in Path("banks").glob("*.csv")))
    assert pgfed("data", "schema", "banks").out == found.out, "a folder is its files"
    write(banks / "odd" / "one.csv", rows(0))
    with Path("odd/one.csv").open("a") as file:
        file.write("1,2,3,4,5,6,7,8\n")
    odd = pgfed("data", "schema", "odd")
    assert (odd.code, "1 row(s) left out: one.csv line 42" in odd.err) == (0, True)
    assert "chargeback equals the target fraud (a leak): dropped" in found.err
    proposed = schema(found.out)
    assert proposed.target == ["fraud"]
    assert (proposed.classes, proposed.positive) == (["no", "yes"], "yes")
    assert proposed.group == "customer"
    assert proposed.drop == ["id", "chargeback"]
    assert list(proposed.numeric) == ["amount"]
    assert proposed.categorical == {"channel": ["phone", "shop", "web"]}
    assert "18 of 120 missing" in found.out
    read = json.loads(pgfed("data", "schema", "banks", "--json").out)
    assert read["schema"]["target"] == ["fraud"]
    assert read["about"]["amount"] in found.out
    assert any("chargeback equals the target" in warning for warning in read["warnings"])


def test_a_proposal_takes_what_it_is_told(tmp_path: Path):
    table = pd.DataFrame(
        {"hospital": ["a", "a", "b", "b"] * 3, "x": range(12), "y": [0.5, 1.5, 2.5, 3.5] * 3}
    )
    found = propose({tmp_path / "t.csv": table}, ["x"]).schema
    assert (found.target, found.client, found.classes) == (
        ["x"],
        "hospital",
        [str(i) for i in range(12)],
    )
    with pytest.raises(UserError, match="target: found 'z'; allowed: hospital, x, y"):
        propose({tmp_path / "t.csv": table}, ["z"])


def proposed(columns: dict[str, object], target: str) -> Proposal:
    return propose({Path("t.csv"): pd.DataFrame(columns)}, [target])


def test_columns_of_numbers_without_repeats_are_no_leaks_of_a_number():
    """Each row has its own temperature and its own yield: that alone says nothing."""
    rng = np.random.default_rng(0)
    heat, made = rng.normal(20, 5, 60), rng.normal(500, 30, 60)
    columns = {"heat": heat, "dollars": made, "euros": 0.9 * made - 5, "log": np.log(made)}
    found = proposed(columns, "dollars")
    assert list(found.schema.numeric) == ["heat", "log"]
    assert found.warnings == [
        "euros equals the target dollars (a leak): dropped",
        "log alone tells every dollars: known only afterwards?",
    ]
    assert 'task.kind = "regression"' in found.text()
    assert '"euros",  # equals the target dollars (a leak)' in found.text()
    assert schema(found.text()) == found.schema


def test_names_that_each_belong_to_one_class_are_told():
    """A code that is given at discharge is known only afterwards."""
    rng = np.random.default_rng(0)
    died = rng.random(80) < 0.4
    code = np.where(died, rng.choice(["X1", "X2"], 80), rng.choice(["Z1", "Z2"], 80))
    ward = rng.choice(["A", "B", "C"], 80)
    found = proposed({"code": code, "ward": ward, "death": died}, "death")
    assert found.warnings == ["code alone tells every death: known only afterwards?"]
    assert list(found.schema.categorical) == ["code", "ward"]
    assert (found.schema.classes, found.schema.positive) == (["False", "True"], "True")


def test_booleans_are_numbers_in_a_proposal():
    flags = pd.Series([True, False, None] * 10, dtype="boolean")
    found = proposed({"flag": flags, "y": ["a", "b", "a", "a", "b", "b"] * 5}, "y")
    assert list(found.schema.numeric) == ["flag"]
    assert "0 to 1, 10 of 30 missing" in found.text()


def test_many_whole_numbers_are_not_taken_for_classes(banks: Path):
    """A price in whole dollars would otherwise be one class for each price."""
    text = 'target = "id"\n[numeric]\namount = {}'
    with pytest.raises(UserError, match=r"id has 120 different numbers; task.kind = "):
        load("csv:banks", None, Options(schema=schema(text)))
    listed = schema(f"classes = {list(range(3000))}\n{text}")
    assert load("csv:banks", None, Options(schema=listed)).class_names[:2] == ("0", "1")


def test_classes_may_be_written_as_numbers():
    plain = schema('target = "y"\nclasses = [0, 1]\npositive = 1\n[categorical]\nflag = [true, 2]')
    assert (plain.classes, plain.positive) == (["0", "1"], "1")
    assert plain.categorical == {"flag": ["True", "2"]}


EXPERIMENT = """
format = 2
rounds = 2
methods = ["local", "fedavg"]
[data]
dataset = "csv:banks"
schema = "schema.toml"
[train]
epochs = 1
lr = 0.05
[engine]
backend = "serial"
"""


def test_a_run_on_tables_and_what_is_taken_home(banks: Path, pgfed):
    (banks / "e.toml").write_text(EXPERIMENT)
    pgfed("run", "e.toml", "--out", "run", "--quiet")
    manifest = json.loads(Path("run/fedavg/seed-0/models/manifest.json").read_text())
    assert manifest["table"]["categorical"] == {"channel": ["phone", "shop", "web"]}
    own = {row["client"]: row["table"]["numeric"]["amount"]["mean"] for row in manifest["clients"]}
    assert own["alpha"] < own["beta"] < own["gamma"]
    # New rows, without targets, and one that is bad.
    new = [["amount", "channel"], [120, "web"], ["", "fax"], ["x", "web"]]
    with Path("new.csv").open("w") as file:
        csv.writer(file).writerows(new)
    given = ("predict", "run", "--client", "beta", "--method", "fedavg", "new.csv")
    done = pgfed(*given)
    assert done.code == 2
    assert "new.csv line 4: amount: found 'x'" in done.err
    assert len(done.out.split()) == 3  # the others are done
    found = pgfed(*given, "--skip-bad")
    assert [line.split(",")[:2] for line in found.out.split()[1:]] == [
        ["new.csv", "2"],
        ["new.csv", "3"],
    ]
    assert "1 rows have a category of 'channel' that is not known" in found.err
    # A client's own test rows, among all rows of its file, score as in the run.
    scored = pgfed("evaluate", "run", "--client", "beta", "--data", "banks/beta.csv", "--json")
    assert json.loads(scored.out)["models"][0]["samples"] == 40
    shared = "run/fedavg/seed-0/models/global.safetensors"
    assert "no scaling of its own for 'amount'" in pgfed("predict", shared, "new.csv").line
    # A site that comes later fits its own.
    write(banks / "late.csv", rows(9))
    pgfed("onboard", "run", "--data", "csv:late.csv", "--epochs", "2", "--out", "late")
    late = json.loads(Path("late/fedavg/manifest.json").read_text())
    assert late["clients"][0]["table"]["numeric"]["amount"]["mean"] > own["gamma"]


def test_a_model_of_arrays_takes_no_table(banks: Path, pgfed):
    small_runs.run("digits", methods=["fedavg"], rounds=1, clients=2, backend="serial", out="run")
    given = ("evaluate", "run", "--client", "0", "--data", "banks/beta.csv")
    assert "is a table, and no schema was agreed on" in pgfed(*given).line
    given = ("predict", "run", "--client", "0", "banks/beta.csv")
    assert "was not trained on a table" in pgfed(*given).line


def test_another_schema_is_not_the_run(banks: Path, pgfed):
    (banks / "e.toml").write_text(EXPERIMENT)
    pgfed("run", "e.toml", "--out", "run", "--quiet")
    (banks / "schema.toml").write_text(SCHEMA.replace("max = 1000", "max = 999"))
    assert (
        "its SHA-256 is not data.schema_sha256" in pgfed("evaluate", "run", "--client", "beta").line
    )


def test_without_a_schema_the_proposal_is_used(banks: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "pgfed.notes")
    result = small_runs.run("csv:banks", methods=["fedavg"], rounds=1, backend="serial")
    assert "no data.schema; as proposed: target fraud; group customer" in caplog.text
    assert result.federation.input_shape == (4,)


NASTY = [
    b"", b"\n", b"a\n", b"a,b\n", b"\xff\xfe\x00", b"a,a\n1,2\n", b'"a,b\n1,2\n', b"\x00,\n1,2\n",
    b"a,b\n1,2,3\n", b"y\n1\n2\n", b",\n,\n", b"a,y\ninf,1\n1e999,0\n", b'a,b\n"1,0\n2,1\n',
]  # fmt: skip


@pytest.mark.parametrize("content", NASTY)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_that_is_no_table_is_one_line(tmp_path: Path, content: bytes, kind: str):
    path = tmp_path / f"t.{kind}"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        load(f"{kind}:{path}", None)
    assert str(error.value).startswith((str(path), f"{kind}:{path}"))


def test_semicolons_and_tabs_are_read(tmp_path: Path):
    for separator in ";\t":
        path = tmp_path / "t.csv"
        path.write_text(
            separator.join("ab") + "\n" + "\n".join(f"{i}{separator}{i % 2}" for i in range(4))
        )
        assert len(load(f"csv:{path}", None).y) == 4


def test_a_file_in_pieces_is_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.csv"
    lines = ["a,b", *(f"{k},{k * k}" for k in range(1, 30))]
    lines.insert(12, "1,2,3,4")  # cannot be parsed
    path.write_text("\n".join(lines))
    monkeypatch.setattr("pgfed.data.tables.reading.AT_ONCE", 4)
    whole, pieces = Bad(skip=True), Bad(skip=True)
    one = frame(path, whole)
    parts = list(frames(path, pieces))
    assert len(parts) == 8
    assert [v for part in parts for v in part["b"]] == one["b"].tolist()
    assert [i for part in parts for i in part.index] == one.index.tolist()
    assert pieces.rows == whole.rows != []
    one.to_parquet(tmp_path / "long.parquet")
    again = list(frames(tmp_path / "long.parquet", Bad(skip=True)))
    assert [v for part in again for v in part["b"]] == one["b"].tolist()
