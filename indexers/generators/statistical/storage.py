"""Saving and opening a fitted state: .npy arrays, parquet strings, LightGBM's text format, and a
manifest written last.

Nothing is pickled. Every file's sha256 is in the manifest, so that a torn or altered artefact is
refused, and equal fits have equal bytes. What follows from the saved matrices is computed again on
opening.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp
from numpy.typing import NDArray

from cogr.errors import SnapshotError, StorageError
from cogr.keywords import NORMALISER
from cogr.mapped import Strings
from cogr.records import Query
from cogr.store import Store, storage_errors
from indexers.generators.cache import read_table
from indexers.generators.statistical import MANIFEST
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.item_keywords import ItemKeywords
from indexers.generators.statistical.ranking.encoder import Encoder
from indexers.generators.statistical.ranking.matrices import Csr, filled
from indexers.generators.statistical.ranking.ranker import Ranker
from indexers.generators.statistical.ranking.text_index import GRAM_BITS, PairSignals, TextIndex
from indexers.text import Analyser

_FORMAT = 11
"""Version of the layout below, and of everything that reads it (analysis, features)."""

Data = bytes | mmap.mmap

_MAX_HEADER = 1024
"""A .npy file's header is shorter than this, in bytes."""


def save(artefact: Artefact, store: Store) -> str:
    """Write an artefact. Returns its content hash; equal fits have equal hashes.

    Raises StorageError when it can't be written.
    """
    return _write(store, artefact.facts, _files(artefact))


def save_cold(cold: Ranker | None, store: Store) -> None:
    """Write the ranker for items that come after a fit, which has none. Raises StorageError."""
    files = _extra("cold", cold)
    _write(store, {"normaliser": NORMALISER}, files)


def open_cold(store: Store, folds: NDArray[Any]) -> Ranker | None:
    """What `save_cold` wrote. Raises SnapshotError as `open_artefact` does."""
    return _extra_ranker(_read(store)[1], "cold", folds)


def known_before(store: Store) -> tuple[set[str], set[tuple[str, str]], set[str]]:
    """Ids of the items of a saved fit, its labels (query, item), and which items were new to it.
    Raises SnapshotError as `open_artefact` does.
    """
    _, files = _read(store, "items.", "queries.", "relevance.", "new.")
    (ids,), (queries,) = (_texts(files[f"{name}.parquet"], "id") for name in ("items", "queries"))
    labels = _matrix(files, "relevance", (len(queries), len(ids))).tocoo()
    pairs = {(queries[q], ids[i]) for q, i in zip(labels.row, labels.col, strict=True)}
    new = np.flatnonzero(_array(files["new.npy"])) if "new.npy" in files else ()
    return set(ids), pairs, {ids[number] for number in new}


def _write(store: Store, facts: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    with storage_errors(store.url):
        store.remove(MANIFEST)
    digests = {}
    for path, data in files.items():
        buffer = io.BytesIO(data if isinstance(data, bytes) else b"")
        if not isinstance(data, bytes):
            np.save(buffer, np.asarray(data, order="C"), allow_pickle=False)
        store.write(path, buffer.getvalue())
        digests[path] = hashlib.sha256(buffer.getbuffer()).hexdigest()
    content = _content_hash(facts, digests)
    manifest = {"format": _FORMAT, "hash": content, "facts": dict(facts), "files": digests}
    store.write_json(MANIFEST, manifest)
    return content


def open_artefact(store: Store, encoder: Encoder | None = None) -> Artefact:
    """Open and verify a saved artefact, ready to answer; with the encoder that it was fitted with.

    Raises SnapshotError when nothing is there, or when it is unfinished, altered or of another
    version.
    """
    facts, files = _read(store)
    ids, digests = _texts(files["items.parquet"], "id", "digest")
    queries = [*map(Query, *_texts(files["queries.parquet"], "id", "text"))]
    (keywords,) = _texts(files["keywords.parquet"], "keyword")
    (vocabulary,) = _texts(files["vocabulary.parquet"], "term")
    n, width = len(ids), max(len(vocabulary), 1)
    index = TextIndex(
        Analyser(facts["language"]),
        {term: column for column, term in enumerate(vocabulary)},
        _matrix(files, "counts", (n, width), _array(files["counts.values.npy"]).astype("f4")),
        _matrix(files, "titles", (n, width)),
        _matrix(files, "grams", (n, 1 << GRAM_BITS), np.int8),
        _matrix(files, "title_grams", (n, 1 << GRAM_BITS), np.int8),
        _array(files["term_points.npy"]).astype(np.float32),
        _array(files["encoded.npy"]).astype(np.float32),
        encoder,
        _pair_signals(files, n),
    )
    owned = [_array(files[f"owned.{part}.npy"]) for part in ("items", "keywords", "kinds")]
    folds = _array(files["folds.npy"])
    ranker = Ranker(
        _models(files, "model"),
        _array(files["linear.npy"]),
        folds,
        float(facts["multiplier"]),
        _extra_ranker(files, "cold", folds),
        _array(files["new.npy"]) if "new.npy" in files else np.zeros(n, np.bool_),
        _extra_ranker(files, "hidden", _array(files["hidden.folds.npy"])),
        _array(files["mixer.npy"]),
    )
    relevance = _matrix(files, "relevance", (len(queries), n))
    item_keywords = ItemKeywords(keywords, owned[0], owned[1], owned[2], n)
    parts = (index, queries, relevance, ranker, item_keywords, ids, digests, facts)
    return Artefact(*parts)


def _files(artefact: Artefact) -> dict[str, bytes | NDArray[Any]]:
    index, owned = artefact.index, artefact.keywords
    ranker = artefact.ranker
    return {
        "items.parquet": _parquet(id=artefact.item_ids, digest=artefact.digests),
        "queries.parquet": _parquet(
            id=[q.id for q in artefact.queries], text=[q.text for q in artefact.queries]
        ),
        "keywords.parquet": _parquet(keyword=owned.keywords),
        "vocabulary.parquet": _parquet(term=list(index.vocabulary)),
        # Counts up to 65,535 are exact; no text has a term more often.
        "counts.values.npy": np.minimum(index.counts.data, 65535).astype("u2"),
        **_places("counts", index.counts),
        **_places("titles", index.titles),
        **_places("grams", index.grams),
        **_places("title_grams", index.title_grams),
        "term_points.npy": index.term_points.astype(np.float16),
        "encoded.npy": index.encoded.astype(np.float16),
        **_given(index.pair_signals),
        **_places("relevance", artefact.relevance),
        "owned.items.npy": owned.items,
        "owned.keywords.npy": owned.owned,
        "owned.kinds.npy": owned.kinds,
        "linear.npy": ranker.linear,
        "folds.npy": ranker.folds,
        **_boosters("model", ranker.models),
        **({"new.npy": ranker.new} if ranker.new.any() else {}),
        "mixer.npy": ranker.mixer,
        **_extra("cold", ranker.cold),
        **_extra("hidden", ranker.hidden),
        "hidden.folds.npy": ranker.hidden.folds if ranker.hidden else np.zeros(0, np.int64),
    }


def _given(signals: PairSignals) -> dict[str, bytes | NDArray[Any]]:
    if not signals.columns:
        return {}
    files: dict[str, bytes | NDArray[Any]] = {"pairs.parquet": _parquet(text=list(signals.rows))}
    for number, column in enumerate(signals.columns):
        files |= {f"pairs.{number:02}.values.npy": column.data}
        files |= _places(f"pairs.{number:02}", column)
    return files


def _pair_signals(files: Mapping[str, Data], n: int) -> PairSignals:
    if "pairs.parquet" not in files:
        return PairSignals()
    (texts,) = _texts(files["pairs.parquet"], "text")
    rows = {text: row for row, text in enumerate(texts)}
    names = (f"pairs.{number:02}" for number in range(len(files)))
    columns = [
        _matrix(files, name, (len(rows), n), _array(files[f"{name}.values.npy"]))
        for name in names
        if f"{name}.values.npy" in files
    ]
    return PairSignals(rows, columns)


def _extra(name: str, ranker: Ranker | None) -> dict[str, bytes | NDArray[Any]]:
    """The files of a ranker beside the main one, without its folds."""
    if ranker is None:
        return {}
    return {f"{name}.linear.npy": ranker.linear, **_boosters(name, ranker.models)}


def _extra_ranker(files: Mapping[str, Data], name: str, folds: NDArray[Any]) -> Ranker | None:
    if f"{name}.linear.npy" not in files:
        return None
    return Ranker(_models(files, name), _array(files[f"{name}.linear.npy"]), folds)


def _boosters(name: str, models: Sequence[Any]) -> dict[str, bytes]:
    return {
        f"{name}.{fold:02}.txt": model.model_to_string().encode()
        for fold, model in enumerate(models)
    }


def _models(files: Mapping[str, Data], name: str) -> list[Any]:
    return [
        lightgbm.Booster(model_str=bytes(files[path]).decode())
        for path in sorted(files)
        if path.startswith(f"{name}.") and path.endswith(".txt")
    ]


def _parquet(**columns: Sequence[str]) -> bytes:
    table = pa.table(
        {name: pa.array(list(values), pa.string()) for name, values in columns.items()}
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _texts(data: Data, *names: str) -> list[Strings]:
    table = read_table(io.BytesIO(data), pa.schema({name: pa.large_string() for name in names}))
    none = pa.array([], pa.large_string())
    return [Strings(pa.concat_arrays([none, *column.chunks])) for column in table.columns]


def _array(data: Data) -> NDArray[Any]:
    start = io.BytesIO(data[:_MAX_HEADER])
    np.lib.format.read_magic(start)  # type: ignore[no-untyped-call]
    shape, _, dtype = np.lib.format.read_array_header_1_0(start)  # type: ignore[no-untyped-call]
    size = math.prod(shape)
    if not size:
        return np.zeros(shape, dtype)
    return np.frombuffer(data, dtype, size, start.tell()).reshape(shape)


def _places(name: str, matrix: Csr) -> dict[str, NDArray[Any]]:
    return {f"{name}.columns.npy": matrix.indices, f"{name}.starts.npy": matrix.indptr}


def _matrix(
    files: Mapping[str, Data], name: str, shape: tuple[int, int], values: Any = np.float32
) -> Csr:
    columns, starts = (_array(files[f"{name}.{part}.npy"]) for part in ("columns", "starts"))
    ones = values if isinstance(values, np.ndarray) else filled(columns.size, values)
    return sp.csr_matrix((ones, columns, starts), shape=shape)


def _data(store: Store, path: str) -> Data:
    if not store.is_local or not store.local(path).stat().st_size:
        return store.read(path)
    with store.open(path) as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _content_hash(facts: Mapping[str, Any], digests: Mapping[str, str]) -> str:
    content = json.dumps([_FORMAT, dict(facts), dict(digests)], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()


def _read(store: Store, *begin: str) -> tuple[dict[str, Any], dict[str, Data]]:
    where, remedy = (
        f"The statistical artefact in {store.url}",
        "delete it and run again, it is then fitted anew",
    )
    try:
        manifest = store.read_json(MANIFEST)
        if manifest["format"] != _FORMAT or manifest["facts"]["normaliser"] != NORMALISER:
            raise SnapshotError(f"{where} was written by another version of the toolkit; {remedy}.")
        facts, digests = manifest["facts"], manifest["files"]
        if manifest["hash"] != _content_hash(facts, digests):
            raise SnapshotError(f"{where} is broken: {MANIFEST} was altered; {remedy}.")
        files = {path: _data(store, path) for path in digests if path.startswith(begin or "")}
    except FileNotFoundError as error:
        raise SnapshotError(
            f"{where} is missing or unfinished ({Path(str(error)).name}); {remedy}."
        ) from error
    except (StorageError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise SnapshotError(f"{where} is broken: {MANIFEST} can't be read; {remedy}.") from error
    for path, data in files.items():
        if hashlib.sha256(data).hexdigest() != digests[path]:
            raise SnapshotError(f"{where} is broken: {path} was altered; {remedy}.")
    return facts, files
