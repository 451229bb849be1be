"""Rows of a database, by an SQLAlchemy URL. Read in the order of their ids, so that an interrupted
import goes on behind the last one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from cogr.datasets.reading import Place
from cogr.errors import DataError, MissingExtraError, ServiceError, SettingsError
from cogr.redaction import learn_words
from indexers.exchange.sources import PAGE, Page, Record


class SqlSource:
    """A table or a query of a database, as `indexers.exchange.sources.Source`.

    Args:
        url: of SQLAlchemy, such as postgresql+psycopg://shop@localhost/shop; its driver must be
            installed.
        query: a table's name, or a SELECT without a semicolon.
        id: the column of the items' ids, by which rows are ordered; unique and never null.
        since: a column of times and a time: only rows that are not older.

    Raises:
        MissingExtraError: SQLAlchemy is not installed.
        SettingsError: a URL that is none, or whose driver is not installed.
    """

    def __init__(
        self, url: str, query: str, id: str = "id", since: tuple[str, datetime] | None = None
    ) -> None:
        try:
            import sqlalchemy as sql
        except ModuleNotFoundError as error:
            raise MissingExtraError("A database (--sql)", "data") from error
        try:
            address = sql.make_url(url)
            if address.password:
                learn_words([str(address.password)])
            self._engine = sql.create_engine(address)
        except (sql.exc.ArgumentError, sql.exc.NoSuchModuleError, ModuleNotFoundError) as error:
            raise SettingsError(
                f"--sql names no database ({error}); write an SQLAlchemy URL such as "
                "postgresql+psycopg://user@host/shop, and install its driver."
            ) from error
        self.name = f"{address.render_as_string(hide_password=True)}"
        self._sql, self._id = sql, id
        asked = query.strip().rstrip(";")
        inner = f"({asked})" if " " in asked else asked
        column = sql.column
        rows = sql.select(sql.text("*")).select_from(sql.text(f"{inner} AS cogr_items"))
        if since:
            # A day more, whatever zone and type the column has; the importer knows exactly.
            rows = rows.where(column(since[0]) >= str(since[1].date() - timedelta(days=1)))
        self._rows = rows.order_by(column(id)).limit(PAGE)
        self._key = hashlib.sha256(json.dumps([self.name, asked, id, str(since)]).encode())

    @property
    def key(self) -> str:
        return self._key.hexdigest()

    def begin(self) -> list[dict[str, Any]]:
        return [{"rows": 0}]

    def page(self, part: int, cursor: Mapping[str, Any]) -> Page:  # noqa: ARG002
        """The next rows; the cursor is the last id and how many rows came before."""
        before, rows = cursor["rows"], self._rows
        if "after" in cursor:
            rows = rows.where(self._sql.column(self._id) > cursor["after"])
        with self._errors(), self._engine.connect() as connection:
            found = [dict(row) for row in connection.execute(rows).mappings()]
        if found and self._id not in found[0]:
            raise DataError(
                f"{self.name}: the rows have no column {self._id!r}; name the items' id with --id."
            )
        records: list[Record] = [
            (Place(self.name, before + number, "row"), {k: _plain(v) for k, v in row.items()})
            for number, row in enumerate(found, start=1)
        ]
        if len(found) < PAGE:
            return Page(records, None)
        last = _plain(found[-1][self._id])
        return Page(records, {"after": last, "rows": before + len(found)})

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._sql.exc.InterfaceError as error:
            raise ServiceError(f"{self.name} can't be reached ({error.orig}).") from error
        except self._sql.exc.DBAPIError as error:
            reason = " ".join(str(error.orig).split())
            raise SettingsError(
                f"{self.name} refuses the query ({reason}); correct --sql, --query or the names of "
                "columns."
            ) from error


def _plain(value: Any) -> Any:
    """A database's value as JSON has it."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    return value
