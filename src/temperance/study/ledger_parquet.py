"""The compacted ledger: a Parquet file that other programs can read as a table.

Every row has its trial and its metrics as plain columns (``trial.temperature``,
``metrics.test_nll``), for pandas, DuckDB and the like, and its whole line in the column ``line``,
which is what Temperance itself reads back: nothing is lost or rounded on the way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import islice
from pathlib import Path
from typing import Any

from temperance.errors import InvalidInput, need
from temperance.study.ledger_lines import SCHEMA
from temperance.study.trial import Trial

__all__ = ["TABLE_NAME", "key_outcomes", "table_lines", "write_table"]

TABLE_NAME = "ledger.parquet"
_MARK = b"temperance.ledger.schema"
_COUNT = b"temperance.ledger.rows"
_BATCH = 5_000  # rows that are held at once
_PLAIN = {
    "schema": "int32",
    "key": "string",
    "outcome": "string",
    "task": "string",
    "message": "string",
    "seconds": "float64",
    "feature_dim": "int64",
    "written": "string",
}

# What the trial of an older row, without a field that came later, was trained with.
_DEFAULTS = {f.name: None if f.default is MISSING else f.default for f in fields(Trial)}


def write_table(
    path: Path,
    rows: Iterable[tuple[bytes, Mapping[str, Any]]],
    *,
    count: int,
    metrics: Sequence[str],
) -> None:
    """Write rows as Parquet: under a temporary name, synced, read back, then renamed.

    To be called under the writing lock.

    Args:
        path: where to.
        rows: line and parsed row, one by one.
        count: how many rows.
        metrics: names of all metrics in them.

    Raises:
        MissingPackage: without pyarrow.
        OSError: if the disk is full; the older file stays.
        InvalidInput: if a figure in a row is of the wrong kind, or the disk gave back something
            else than was written; the older file stays.
    """
    temporary = path.with_name(f".{path.name}.new")  # one that a kill has left is overwritten
    try:
        _write(temporary, rows, _schema(count, metrics))
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        for _ in table_lines(temporary):  # read all back before anything older is removed
            pass
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write(path: Path, rows: Iterable[tuple[bytes, Mapping[str, Any]]], schema: Any) -> None:
    parquet = need("pyarrow.parquet", "parquet")
    rest = iter(rows)
    with parquet.ParquetWriter(
        path, schema, compression="zstd", write_page_checksum=True
    ) as writer:
        while batch := list(islice(rest, _BATCH)):
            writer.write_batch(_batch(batch, schema))


def _schema(count: int, metrics: Sequence[str]) -> Any:
    arrow = need("pyarrow", "parquet")
    trial = {f"trial.{f.name}": _arrow_name(str(f.type)) for f in fields(Trial)}
    figures = {f"metrics.{name}": "float64" for name in sorted(metrics)}
    columns = {**_PLAIN, **trial, **figures, "line": "string"}
    listed = [arrow.field(name, arrow.type_for_alias(kind)) for name, kind in columns.items()]
    return arrow.schema(listed, metadata={_MARK: str(SCHEMA), _COUNT: str(count)})


def _arrow_name(annotation: str) -> str:
    kinds = {"str": "string", "float": "float64", "int": "int64"}
    return kinds[annotation.removesuffix(" | None")]


def _batch(batch: Sequence[tuple[bytes, Mapping[str, Any]]], schema: Any) -> Any:
    arrow = need("pyarrow", "parquet")
    columns = []
    for column in schema:
        if column.name == "line":
            values: list[Any] = [line.decode() for line, _ in batch]
        else:
            part, _, name = column.name.rpartition(".")
            absent = _DEFAULTS.get(name) if part == "trial" else None
            values = [(row.get(part) or {} if part else row).get(name, absent) for _, row in batch]
        try:
            columns.append(arrow.array(values, type=column.type))
        except (arrow.ArrowException, TypeError, OverflowError) as error:
            raise InvalidInput(
                f"ledger column {column.name}",
                expected=f"values of type {column.type}",
                found=str(error),
                fix="Correct or remove the row in ledger.jsonl; nothing was changed.",
            ) from error
    return arrow.record_batch(columns, schema=schema)


def table_lines(path: Path) -> Iterator[bytes]:
    """Give the lines of a compacted ledger, in their order.

    Args:
        path: the Parquet file; one that is not there has no lines.

    Yields:
        Line by line, without ends.

    Raises:
        MissingPackage: without pyarrow.
        InvalidInput: if it is damaged, no ledger, or of another schema version.
    """
    for (lines,) in _batches(path, ["line"]):
        yield from (line.encode() for line in lines)


def key_outcomes(path: Path) -> Iterator[tuple[str, str]]:
    """Give key and outcome of every row of a compacted ledger; reads nothing else."""
    for keys, outcomes in _batches(path, ["key", "outcome"]):
        yield from zip(keys, outcomes, strict=True)


def _batches(path: Path, columns: list[str]) -> Iterator[list[list[str]]]:
    """Give some rows at a time of columns of texts."""
    if not path.exists():
        return
    arrow, parquet = need("pyarrow", "parquet"), need("pyarrow.parquet", "parquet")
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            notes = file.schema_arrow.metadata or {}
            _check_version(path, notes.get(_MARK))
            count = int(notes[_COUNT])
            for batch in file.iter_batches(_BATCH, columns=columns, use_threads=False):
                if batch.schema.types != [arrow.string()] * len(columns):
                    raise ValueError(f"{batch.schema.types} for {columns}")
                count -= len(batch)
                yield [column.to_pylist() for column in batch.columns]
        if count:
            raise ValueError(f"{-count:+} rows")
    except InvalidInput:
        raise
    except Exception as error:  # a damaged file gives errors of every kind
        raise InvalidInput(
            f"ledger {path}",
            expected="a whole Parquet file",
            found=f"{type(error).__name__}: {error}",
            fix="Get it from a backup, or remove it: its trials are then done again.",
        ) from error


def _check_version(path: Path, found: bytes | None) -> None:
    if found != str(SCHEMA).encode():
        version = "no ledger" if found is None else f"version {found.decode(errors='replace')}"
        raise InvalidInput(
            f"ledger {path}",
            expected=f"a ledger of schema version {SCHEMA}",
            found=version,
            fix="Name a folder of a sweep, or read it with the release that wrote it.",
        )
