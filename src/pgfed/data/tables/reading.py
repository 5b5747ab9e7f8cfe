"""csv and parquet files as columns: every cell looked at, all bad rows told at once."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgfed.data.files.limits import check_size
from pgfed.data.files.tree import FEW
from pgfed.data.tables.preparation import Columns
from pgfed.data.tables.schema import Schema
from pgfed.errors import NOTES, UserError

# What people and programs write where there is no value.
MISSING = ("", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A")
LINE = "line"  # of a csv file, row of a parquet file
AT_ONCE = 50_000  # rows, where a file is not read as a whole


@dataclass
class Bad:
    """Rows that cannot be used, with the reason; told at once, or left out."""

    skip: bool
    rows: list[str] = field(default_factory=list)

    def settle(self, name: str) -> None:
        if not self.rows:
            return
        more = f" and {len(self.rows) - FEW} more" if len(self.rows) > FEW else ""
        which = "; ".join(self.rows[:FEW]) + more
        if not self.skip:
            raise UserError(
                f"{name}: {len(self.rows)} row(s) cannot be used: {which}; mend them, or leave "
                "them out with --skip-bad (data.skip_bad = true)"
            )
        NOTES.warning(f"{name}: {len(self.rows)} row(s) left out: {which}")


def pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ModuleNotFoundError:
        raise UserError(
            "tables need pandas, which is not installed: pip install pgfed[tabular]"
        ) from None


def files(kind: str, place: Path) -> list[Path]:
    """One file, or those of a folder: one per site."""
    if not place.is_dir():
        return [place]
    found = sorted(p for p in place.glob(f"*.{kind}") if not p.name.startswith("."))
    if not found:
        raise UserError(f"{place}: holds no .{kind} files; allowed: a file, or one per site")
    return found


def frame(path: Path, bad: Bad) -> Any:
    """A file as a DataFrame of texts (csv) or of what it holds (parquet); rows by their line."""
    read = _parquet if path.suffix == ".parquet" else _csv
    try:
        check_size(str(path), path.stat().st_size)
        found = list(read(path, bad, None))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not found or not len(found[0].columns) or not len(found[0]):
        raise UserError(f"{path}: holds no rows; allowed: a header, and a row per sample")
    return _named(path, found[0])


def frames(path: Path, bad: Bad) -> Iterator[Any]:
    """The same, some rows at a time: a file may be larger than the memory."""
    read = _parquet if path.suffix == ".parquet" else _csv
    try:
        for found in read(path, bad, AT_ONCE):
            yield _named(path, found)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def _named(path: Path, found: Any) -> Any:
    found.columns = [str(column).strip() for column in found.columns]
    twice = found.columns[found.columns.duplicated()]
    if len(twice):
        raise UserError(f"{path}: the column {twice[0]!r} stands there twice")
    return found


def _csv(path: Path, bad: Bad, at_once: int | None) -> Iterator[Any]:
    pd = pandas()
    line = 2  # as an editor counts them; the header is the first
    try:
        reader = pd.read_csv(
            path, dtype=str, keep_default_na=False, on_bad_lines="warn", index_col=False,
            sep=_separator(path), encoding="utf-8-sig", iterator=True,
        )  # fmt: skip
        with reader:
            while True:
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    try:
                        found = reader.read(at_once)
                    except StopIteration:
                        return
                skipped = _skipped(path, told, bad)
                # Those that could not be parsed are not rows.
                lines = np.setdiff1d(np.arange(line, line + len(found) + len(skipped)), skipped)
                found.index = lines[: len(found)]
                line += len(found) + len(skipped)
                yield found
                if at_once is None:
                    return
    except pd.errors.EmptyDataError:
        raise UserError(f"{path}: is empty; allowed: a header, and a row per sample") from None
    except (pd.errors.ParserError, UnicodeError, ValueError) as error:
        raise UserError(f"{path}: not a csv file ({str(error).strip()})") from None


def _skipped(path: Path, told: list[warnings.WarningMessage], bad: Bad) -> list[int]:
    """The lines that pandas says it could not parse."""
    skipped = []
    for warning in told:
        for number, reason in re.findall(r"[Ll]ine (\d+): ([^\n]*)", str(warning.message)):
            skipped.append(int(number))
            bad.rows.append(f"{path.name} {LINE} {number}: {reason.strip()}")
    return skipped


def _separator(path: Path) -> str:
    """Semicolons where the header has them and no commas: what some programs export."""
    with path.open("rb") as file:
        head = file.readline(1_000_000)
    return ";" if b";" in head and b"," not in head else "\t" if b"\t" in head else ","


def _parquet(path: Path, bad: Bad, at_once: int | None) -> Iterator[Any]:
    pandas()
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise UserError(
            "parquet files need pyarrow, which is not installed: pip install pgfed[tabular]"
        ) from None
    try:
        file = parquet.ParquetFile(path)
        if at_once is not None:
            start = 0
            for batch in file.iter_batches(at_once):
                found = batch.to_pandas()
                found.index = np.arange(start, start + len(found))
                start += len(found)
                yield found
            return
        about = file.metadata
        check_size(
            str(path), sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        )
        yield file.read().to_pandas()
    except (UserError, OSError):
        raise
    except Exception as error:  # pyarrow raises a dozen kinds on damaged files
        raise UserError(f"{path}: not a parquet file, or damaged ({error})") from None


# -- cells -------------------------------------------------------------------------------------


def texts(column: Any, schema_missing: list[str]) -> NDArray[Any]:
    """The cells as texts without blanks around; None where a value is missing."""
    text = column.map(_plain, na_action="ignore") if column.dtype.kind in "fO" else column
    text = text.astype(str).str.strip()
    gaps = (column.isna() | text.isin([*MISSING, *schema_missing])).to_numpy()
    found: NDArray[Any] = text.to_numpy(dtype=object)
    found[gaps] = None
    return found


def _plain(value: Any) -> str:
    """3.0 is 3: a column of whole numbers with gaps is read as floats."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def numbers(found: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Texts as numbers, NaN where missing; and which are none."""
    pd = pandas()
    flags = {"True": "1", "False": "0", "true": "1", "false": "0"}
    plain = [flags.get(text, text) for text in found]
    values = pd.to_numeric(pd.Series(plain, dtype=object), errors="coerce")
    values = values.to_numpy(dtype=np.float64, na_value=np.nan)
    given = np.array([text is not None for text in found], dtype=np.bool_)
    return np.where(given, values, np.nan), given & ~np.isfinite(values)


@dataclass(frozen=True)
class Rows:
    """The rows of one file as a schema has them."""

    numeric: NDArray[np.float64]
    categorical: NDArray[Any]  # texts or None
    target: NDArray[Any]  # texts or None; no column where targets are not read
    roles: dict[str, NDArray[Any]]
    line: NDArray[np.int64]


def rows(
    path: Path,
    table: Any,
    schema: Schema,
    bad: Bad,
    *,
    targets: bool = True,
    numeric_targets: bool = False,
) -> Rows:
    """The columns that the schema names; rows with a cell that cannot be used are bad.

    ``targets``: whether the rows are to have any, and what else only training and testing need.
    """
    roles = schema.roles if targets else {}
    wanted = [*schema.numeric, *schema.categorical, *roles.values()]
    for column in [*wanted, *(schema.target if targets else [])]:
        if column not in table.columns:
            raise UserError(
                f"{path}: no column {column!r}, which the schema names; found: "
                f"{', '.join(map(str, table.columns))}"
            )
    reason = np.full(len(table), None, dtype=object)
    numeric = np.full((len(table), len(schema.numeric)), np.nan)
    for k, (name, about) in enumerate(schema.numeric.items()):
        found = texts(table[name], schema.missing)
        numeric[:, k], wrong = numbers(found)
        if targets and not bad.skip:
            _check_numbers(path, name, found, wrong, "list it in the schema's [categorical]")
        with np.errstate(invalid="ignore"):
            if about.min is not None:
                wrong |= numeric[:, k] < about.min
            if about.max is not None:
                wrong |= numeric[:, k] > about.max
        limits = f"; allowed: {_limits(about.min, about.max)}"
        _note(reason, wrong, name, found, limits)
    named = [texts(table[name], schema.missing) for name in schema.categorical]
    target = [texts(table[name], schema.missing) for name in schema.target if targets]
    for name, found in zip(schema.target, target, strict=False):
        if numeric_targets and not bad.skip:
            instead = 'task.kind = "classes" predicts names'
            _check_numbers(path, name, found, numbers(found)[1], instead)
        _note(reason, *_wrong_targets(name, found, schema, numeric_targets))
    others = {role: texts(table[column], schema.missing) for role, column in roles.items()}
    for role, found in others.items():
        _note(reason, np.array([text is None for text in found]), roles[role], found, "")
    good = np.array([one is None for one in reason], dtype=np.bool_)
    lines = table.index.to_numpy()
    bad.rows += [f"{path.name} {LINE} {lines[i]}: {reason[i]}" for i in np.flatnonzero(~good)]
    return Rows(
        numeric[good],
        _columns(named, len(table))[good],
        _columns(target, len(table))[good],
        {role: found[good] for role, found in others.items()},
        lines[good],
    )


def _wrong_targets(
    name: str, found: NDArray[Any], schema: Schema, numeric: bool
) -> tuple[NDArray[np.bool_], str, NDArray[Any], str]:
    """Which targets are missing, or none of those that are allowed; as `_note` wants it."""
    wrong = np.array([text is None for text in found], dtype=np.bool_)
    if numeric:
        return wrong | numbers(found)[1], name, found, "; allowed: numbers"
    if not schema.classes:
        return wrong, name, found, ""
    allowed = f"; allowed: {', '.join(schema.classes)}"
    return ~np.isin(found.astype(str), schema.classes) | wrong, name, found, allowed


def _check_numbers(
    path: Path, name: str, found: NDArray[Any], wrong: NDArray[np.bool_], instead: str
) -> None:
    """A column with texts in all its rows is no column with bad rows."""
    if len(wrong) > 1 and wrong.all():
        raise UserError(
            f"{path}: {name}: none of its {len(wrong)} rows holds a number, the first has "
            f"{found[0]!r}; {instead}"
        )


def _columns(found: list[NDArray[Any]], n: int) -> NDArray[Any]:
    return np.stack(found, axis=1) if found else np.empty((n, 0), dtype=object)


def _limits(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return "numbers"
    return f"{'any' if low is None else f'{low:g}'} to {'any' if high is None else f'{high:g}'}"


def _note(
    reason: NDArray[Any], wrong: NDArray[np.bool_], name: str, found: NDArray[Any], allowed: str
) -> None:
    for i in np.flatnonzero(wrong):
        if reason[i] is None:
            what = "no value" if found[i] is None else f"found {found[i]!r}"
            reason[i] = f"{name}: {what}{allowed}"


def raw(parts: list[Rows], schema: Schema) -> tuple[NDArray[np.float64], Columns]:
    """All rows as numbers, categories by their place among all that occur."""
    numeric = np.concatenate([part.numeric for part in parts])
    texts_ = np.concatenate([part.categorical for part in parts])
    levels = []
    codes = np.full(texts_.shape, np.nan)
    for k in range(texts_.shape[1]):
        given = np.array([text is not None for text in texts_[:, k]], dtype=np.bool_)
        found, place = np.unique(texts_[given, k].astype(str), return_inverse=True)
        codes[given, k] = place
        levels.append(tuple(str(one) for one in found))
    return np.concatenate([numeric, codes], axis=1), Columns(schema, tuple(levels))
