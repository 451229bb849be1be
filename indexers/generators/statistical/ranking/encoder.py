"""Text embeddings by an encoder of sentence-transformers (Reimers and Gurevych 2019): knowledge
that neither the labels nor the collection's words have.

ONNX Runtime reads `onnx/model.onnx`, which most have on the hub. The embeddings (points) are kept
in the store, by the content of encoder and text: a text is encoded once. What `auto` stands for is
chosen once in a store, which keeps that encoder too (`choose_encoder`), so that workers and later
fits have the same one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from cogr.errors import GeneratorError, MissingExtraError, ServiceError, require
from cogr.records import Item
from cogr.store import Store, file_sha256
from indexers.generators import batched
from indexers.generators.model_folders import first_line, loading, model_folder, read_json
from indexers.generators.statistical.ranking.matrices import Floats, unit

_FOLDER = "encoded"
"""Where a store keeps points, one folder an encoder."""

MINILM = "sentence-transformers/all-MiniLM-L6-v2"

ONNX_FILE = "onnx/model.onnx"
"""Where sentence-transformers' folders have a model for ONNX Runtime."""

_PATTERNS = (ONNX_FILE, "*.json", "1_Pooling/*.json")
_FILES = (ONNX_FILE, "tokenizer.json", "1_Pooling/config.json")

CHOICE = f"{_FOLDER}/choice.json"

MAX_ENCODED, MAX_LETTERS = 100_000, 16_000_000
"""For which `auto` takes an encoder. A new query is encoded and compared with all items, which
takes it from 13 to 22 ms; half an hour of a core encodes 4 million tokens.
"""

_FOREIGN, _READ = 0.02, 5000
"""Share of letters beyond ASCII that English titles stay below, and titles that are looked at."""

_MAX_TOKENS, LETTERS = 128, 4
"""Tokens of a text that are read, since the beginning of an item says what it is; letters of a
token, about.
"""

_AT_ONCE, BATCH = 512, 32
"""Texts that are encoded between two writes to the store, and together."""


class Encoder:
    """An encoder and what it has encoded.

    Args:
        model: a folder in sentence-transformers' layout, or a name on the Hugging Face hub.
        store: keeps the points.
        kept: the digest of an encoder that the store keeps (`choose_encoder`); `model` is then its
            name.

    Raises:
        GeneratorError: the folder is missing, or has no ONNX model.
        ServiceError: the hub can't be reached and the model is not in its local cache.
    """

    def __init__(self, model: str, store: Store, *, kept: str = "") -> None:
        self._folder = None if kept else model_folder(model, _PATTERNS)
        self.digest = _digest(self._folder) if self._folder else kept
        self._store = store.below(f"{_FOLDER}/{self.digest}")
        self._known: dict[bytes, Floats] = {}

    @cached_property
    def _encode(self) -> Callable[[list[str]], Floats]:
        if self._folder is None:
            return _kept(self._store)
        return _by_onnx(self._folder)

    def points(self, texts: Sequence[str], *, keep: bool = True) -> Floats:
        """Points of length 1, (texts, dimensions).

        Args:
            texts: of items or queries.
            keep: whether the points are saved; off for queries that come one at a time.
        """
        keys = [hashlib.blake2b(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        if keep and not self._known.keys() >= set(keys):
            self._read()
        missing = {
            key: text for key, text in zip(keys, texts, strict=True) if key not in self._known
        }
        fresh = sorted(missing, key=lambda key: len(missing[key]))
        points = dict[bytes, Floats]()
        for at in range(0, len(fresh), _AT_ONCE):
            some = fresh[at : at + _AT_ONCE]
            # Tokenizers refuse lone surrogates.
            clean = [missing[key].encode("utf-8", "replace").decode() for key in some]
            made = dict(zip(some, unit(self._encode(clean)), strict=True))
            points.update(made)
            if keep:
                self._keep(made)
        rows = [self._known[key] if key in self._known else points[key] for key in keys]
        return np.stack(rows) if rows else np.zeros((0, 0), dtype=np.float32)

    def _keep(self, made: dict[bytes, Floats]) -> None:
        self._known.update(made)
        buffer = io.BytesIO()
        # Points lie on a grid that float16 holds exactly.
        np.savez(
            buffer,
            keys=np.frombuffer(b"".join(made), dtype=np.uint8).reshape(len(made), -1),
            points=np.stack(list(made.values())).astype(np.float16),
        )
        name = hashlib.sha256(b"".join(made)).hexdigest()[:16]
        self._store.write(f"{name}.npz", buffer.getvalue())

    def _read(self) -> None:
        for name in (one for one in self._store.list("") if one.endswith(".npz")):
            with np.load(io.BytesIO(self._store.read(name)), allow_pickle=False) as saved:
                points = saved["points"].astype(np.float32)
                self._known.update(zip(map(bytes, saved["keys"]), points, strict=True))


@dataclass(frozen=True)
class EncoderChoice:
    """An encoder's name, with the digest of what the store keeps of it where `auto` stands for it,
    or why there is none.
    """

    model: str = ""
    digest: str = ""
    why: str = ""

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"encoder {self.model}" if self.model else f"no encoder{why}"


def recorded(store: Store) -> EncoderChoice | None:
    """What a store has recorded that `auto` stands for."""
    return EncoderChoice(**store.read_json(CHOICE)) if store.exists(CHOICE) else None


def choose_encoder(items: Sequence[Item], language: str, store: Store) -> EncoderChoice:
    """The choice that the store has recorded, or else a new one, recorded there with the encoder's
    files.
    """
    if known := recorded(store):
        return known
    choice = _choose(items, language, store)
    store.create(CHOICE, json.dumps(asdict(choice)).encode())
    return recorded(store) or choice


def _choose(items: Sequence[Item], language: str, store: Store) -> EncoderChoice:
    if len(items) > MAX_ENCODED:
        return EncoderChoice(why=f"new queries would be slow with more than {MAX_ENCODED:,} items")
    read = _MAX_TOKENS * LETTERS
    if sum(min(len(item.title) + len(item.text), read) for item in items) > MAX_LETTERS:
        return EncoderChoice(why="the items' texts would take more than half an hour of a core")
    if not _is_english(items, language):
        return EncoderChoice(why=f"{MINILM} reads English, and the items are of another language")
    try:
        folder = model_folder(MINILM, _PATTERNS)
        _by_onnx(folder)
    except (GeneratorError, MissingExtraError, ServiceError) as error:
        return EncoderChoice(why=first_line(error))
    digest = _digest(folder)
    for name in _names(folder):
        store.write(f"{_FOLDER}/{digest}/{name}", (folder / name).read_bytes())
    return EncoderChoice(MINILM, digest)


def _is_english(items: Sequence[Item], language: str) -> bool:
    letters = [c for item in islice(items, _READ) for c in item.title if c.isalpha()]
    foreign = sum(not c.isascii() for c in letters)
    return language == "english" and foreign <= _FOREIGN * len(letters)


def _names(folder: Path) -> list[str]:
    return [name for name in _FILES if (folder / name).is_file()]


def _digest(folder: Path) -> str:
    if not (folder / ONNX_FILE).is_file():
        raise GeneratorError(
            f"The encoder {folder} has no {ONNX_FILE}; name another, or save it again by "
            'SentenceTransformer(FOLDER, backend="onnx").'
        )
    lines = "".join(f"{name}\0{file_sha256(folder / name)}\n" for name in _names(folder))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def _kept(store: Store) -> Callable[[list[str]], Floats]:
    """What encodes texts by the encoder whose files lie in the store."""
    with tempfile.TemporaryDirectory() as folder:
        for name in _FILES:
            if store.exists(name):
                (Path(folder) / name).parent.mkdir(exist_ok=True)
                (Path(folder) / name).write_bytes(store.read(name))
            elif name == ONNX_FILE:
                raise GeneratorError(
                    f"The store {store.url} has lost its encoder; remove {CHOICE} from the store, "
                    "and rebuild both sides."
                )
        return _by_onnx(Path(folder))


def _read_onnx(folder: Path) -> tuple[Any, Any]:
    """The tokenizer and the session of ONNX Runtime."""
    require("generator.statistical.encoder", "statistical", "onnxruntime", "tokenizers")
    from onnxruntime import InferenceSession, SessionOptions
    from tokenizers import Tokenizer

    pooling = read_json(folder / "1_Pooling" / "config.json", f"The encoder {folder}")
    if pooling.get("pooling_mode") != "mean" and not pooling.get("pooling_mode_mean_tokens"):
        raise GeneratorError(
            f"The encoder {folder} does not take the mean of its tokens; use one that does, such "
            f"as {MINILM}."
        )
    with loading(f"The encoder in {folder}"):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        options = SessionOptions()
        # A query's few tokens gain nothing by more, which wait for one another on a busy machine.
        options.intra_op_num_threads = 1
        session = InferenceSession(folder / ONNX_FILE, options, ["CPUExecutionProvider"])
    tokenizer.enable_truncation(_MAX_TOKENS)
    tokenizer.enable_padding()
    return tokenizer, session


def _by_onnx(folder: Path) -> Callable[[list[str]], Floats]:
    """What encodes texts by ONNX Runtime, with the means of their tokens' vectors."""
    tokenizer, session = _read_onnx(folder)
    inputs = {node.name for node in session.get_inputs()}
    names = [node.name for node in session.get_outputs()]
    vectors = next(
        name for name in ("last_hidden_state", "token_embeddings", *names) if name in names
    )

    def together(texts: list[str]) -> Floats:
        read = tokenizer.encode_batch(texts)
        ids = np.array([row.ids for row in read], np.int64)
        mask = np.array([row.attention_mask for row in read], np.int64)
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}
        (points,) = session.run([vectors], {k: v for k, v in given.items() if k in inputs})
        means: Floats = (points * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return means.astype(np.float32)

    def encode(texts: list[str]) -> Floats:
        if len(texts) <= BATCH:
            return together(texts)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return np.concatenate([*pool.map(together, batched(texts, BATCH))])

    return encode
