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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from cogr.errors import SnapshotError, StorageError
from cogr.keywords import NORMALISER
from cogr.records import Query
from cogr.store import Store, storage_errors
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.edits import Editor
from indexers.generators.statistical.encoder import Encoder
from indexers.generators.statistical.item_keywords import ItemKeywords
from indexers.generators.statistical.matrices import Csr
from indexers.generators.statistical.ranker import Ranker
from indexers.generators.statistical.text_index import GRAM_BITS, TextIndex
from indexers.rebuild.cache import read_table
from indexers.text import Analyser

FORMAT = 4
"""Version of the layout below, and of everything that reads it (analysis, features)."""

MANIFEST = "manifest.json"


def save(artefact: Artefact, folder: str | Path | Store) -> str:
    """Write an artefact into a folder or fsspec URL. Returns its content hash; equal fits have
    equal hashes.

    Raises StorageError when it can't be written.
    """
    store = folder if isinstance(folder, Store) else Store(folder)
    with storage_errors(store.url):
        store.remove(MANIFEST)
    digests = {}
    for path, data in _files(artefact).items():
        store.write(path, data)
        digests[path] = hashlib.sha256(data).hexdigest()
    facts = dict(artefact.facts)
    content = _content_hash(facts, digests)
    store.write_json(
        MANIFEST, {"format": FORMAT, "hash": content, "facts": facts, "files": digests}
    )
    return content


def open_artefact(folder: str | Path | Store, encoder: Encoder | None = None) -> Artefact:
    """Open and verify a saved artefact, ready to answer; with the encoder that it was fitted with.

    Raises SnapshotError when nothing is there, or when it is unfinished, altered or of another
    version.
    """
    store = folder if isinstance(folder, Store) else Store(folder)
    facts, files = _read(store)
    items = _table(files["items.parquet"], "id", "digest")
    asked = _table(files["queries.parquet"], "id", "text")
    queries = [Query(id_, text) for id_, text in zip(asked["id"], asked["text"], strict=True)]
    keywords = _table(files["keywords.parquet"], "keyword")["keyword"]
    vocabulary = _table(files["vocabulary.parquet"], "term")["term"]
    n, width = len(items["id"]), max(len(vocabulary), 1)
    index = TextIndex(
        Analyser(facts["language"]),
        {term: column for column, term in enumerate(vocabulary)},
        _matrix(files, "counts", (n, width)),
        _matrix(files, "titles", (n, width)),
        _matrix(files, "grams", (n, 1 << GRAM_BITS)),
        _matrix(files, "title_grams", (n, 1 << GRAM_BITS)),
        _array(files["term_points.npy"]).astype(np.float32),
        _array(files["signals.npy"]),
        _array(files["encoded.npy"]).astype(np.float32),
        encoder,
    )
    parts = [_array(files[f"owned.{part}.npy"]) for part in ("items", "keywords", "kinds")]
    owned = ItemKeywords(keywords, parts[0], parts[1], parts[2], n)
    ranker = Ranker(
        _models(files, "model"),
        _array(files["linear.npy"]),
        _array(files["folds.npy"]),
        float(facts["multiplier"]),
    )
    relevance = _matrix(files, "relevance", (len(queries), n))
    artefact = Artefact(
        index,
        queries,
        relevance,
        ranker,
        owned,
        items["id"],
        items["digest"],
        facts,
        _editor(files),
    )
    artefact.prepare()
    return artefact


def _files(artefact: Artefact) -> dict[str, bytes]:
    index, owned = artefact.index, artefact.keywords
    return {
        "items.parquet": _parquet(id=artefact.item_ids, digest=artefact.digests),
        "queries.parquet": _parquet(
            id=[q.id for q in artefact.queries], text=[q.text for q in artefact.queries]
        ),
        "keywords.parquet": _parquet(keyword=owned.keywords),
        "vocabulary.parquet": _parquet(term=list(index.vocabulary)),
        **_csr("counts", index.counts),
        **_csr("titles", index.titles),
        **_csr("grams", index.grams),
        **_csr("title_grams", index.title_grams),
        "term_points.npy": _npy(index.term_points.astype(np.float16)),
        "signals.npy": _npy(index.signals),
        "encoded.npy": _npy(index.encoded.astype(np.float16)),
        **_csr("relevance", artefact.relevance),
        "owned.items.npy": _npy(owned.items),
        "owned.keywords.npy": _npy(owned.owned),
        "owned.kinds.npy": _npy(owned.kinds),
        "linear.npy": _npy(artefact.ranker.linear),
        "folds.npy": _npy(artefact.ranker.folds),
        **_boosters("model", artefact.ranker.models),
        **_edits(artefact.editor),
    }


def _edits(editor: Editor | None) -> dict[str, bytes]:
    if editor is None:
        return {}
    return {
        "edits.folds.npy": _npy(editor.folds),
        "edits.margin.npy": _npy(np.array(editor.margin)),
        **_boosters("edits", editor.models),
    }


def _editor(files: Mapping[str, bytes]) -> Editor | None:
    if "edits.folds.npy" not in files:
        return None
    margin = float(_array(files["edits.margin.npy"]))
    return Editor(_models(files, "edits"), _array(files["edits.folds.npy"]), margin)


def _boosters(name: str, models: Sequence[Any]) -> dict[str, bytes]:
    return {
        f"{name}.{fold:02}.txt": model.model_to_string().encode()
        for fold, model in enumerate(models)
    }


def _models(files: Mapping[str, bytes], name: str) -> list[Any]:
    return [
        lightgbm.Booster(model_str=files[path].decode())
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


def _table(data: bytes, *names: str) -> dict[str, list[str]]:
    columns: dict[str, list[str]] = read_table(
        io.BytesIO(data), pa.schema({name: pa.string() for name in names})
    ).to_pydict()
    return columns


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _array(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _csr(name: str, matrix: Csr) -> dict[str, bytes]:
    """A matrix of small counts. Counts up to 65,535 are exact; no text that fits has more."""
    parts = {
        "starts": matrix.indptr,
        "columns": matrix.indices,
        "values": np.minimum(matrix.data, 65535).astype("u2"),
    }
    return {f"{name}.{part}.npy": _npy(array) for part, array in parts.items()}


def _matrix(files: Mapping[str, bytes], name: str, shape: tuple[int, int]) -> Csr:
    values, columns, starts = (
        _array(files[f"{name}.{part}.npy"]) for part in ("values", "columns", "starts")
    )
    return sp.csr_matrix((values.astype(np.float32), columns, starts), shape=shape)


def _content_hash(facts: Mapping[str, Any], digests: Mapping[str, str]) -> str:
    content = json.dumps([FORMAT, dict(facts), dict(digests)], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()


def _read(store: Store) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Facts and verified files."""
    where, remedy = (
        f"The statistical artefact in {store.url}",
        "delete it and run again, it is then fitted anew",
    )
    try:
        manifest = store.read_json(MANIFEST)
        if manifest["format"] != FORMAT or manifest["facts"]["normaliser"] != NORMALISER:
            raise SnapshotError(f"{where} was written by another version of the toolkit; {remedy}.")
        facts, digests = manifest["facts"], manifest["files"]
        if manifest["hash"] != _content_hash(facts, digests):
            raise SnapshotError(f"{where} is broken: {MANIFEST} was altered; {remedy}.")
        files = {path: store.read(path) for path in digests}
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
