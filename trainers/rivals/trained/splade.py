"""SPLADE v2 (Formal et al. 2021): a masked language model weighs the words of its vocabulary, for
items and queries, by the largest logarithm of its logits. It is trained with in-batch and BM25
negatives under a penalty on the words used (FLOPS).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cogr.errors import GeneratorError
from indexers.generators.model_folders import in_bfloat16, read_json
from trainers.rivals import Family, Params
from trainers.rivals.trained import READ_TOKENS, best, clean, loading, rates
from trainers.rivals.trained.dense import DPR, Hits

_USUAL = "naver/splade_v2_max"
_AT_ONCE = 8
"""Texts that are computed at once: the logits have a number for each token and each word."""


def open_splade(folder: Path) -> Any:
    """A SparseEncoder from its own folder or from a masked language model's.

    Raises GeneratorError for another kind of model.
    """
    from sentence_transformers import SparseEncoder

    config = read_json(folder / "config.json", f"The model folder {folder}")
    if not any(name.endswith("ForMaskedLM") for name in config.get("architectures") or []):
        raise GeneratorError(
            f"{folder} is not a masked language model, which SPLADE needs; name one such as "
            f"{_USUAL}."
        )
    with loading("sparse encoder", folder, "another"):
        model = SparseEncoder(str(folder), model_kwargs={"use_safetensors": True})
    model.max_seq_length = min(model.max_seq_length or READ_TOKENS, READ_TOKENS)
    return model


def weigh(model: Any, texts: Sequence[str], side: str) -> Any:
    """Weights of words, a sparse matrix of float32 (texts, vocabulary). `side` is "query" or
    "document".
    """
    from scipy import sparse

    options = {"batch_size": _AT_ONCE, "show_progress_bar": False, "convert_to_sparse_tensor": True}
    with in_bfloat16(model.device.type):
        found = getattr(model, f"encode_{side}")(clean(texts), **options)
    found = found.float().cpu().coalesce()
    rows, columns = found.indices().numpy()
    return sparse.csr_matrix((found.values().numpy(), (rows, columns)), shape=found.shape)


class Splade(DPR):
    """SPLADE v2, trained on the labels."""

    family: Family = "sparse"
    usual = _USUAL
    grid = rates(2e-5, 1e-4, document=3e-5, query=5e-5, batch=32, negatives=1)
    fresh = rates(1e-3, 3e-3, document=3e-5, query=5e-5, batch=32, negatives=1)
    open = staticmethod(open_splade)
    encode = staticmethod(weigh)

    def loss(self, model: Any, params: Params) -> Any:
        """In-batch negatives and the penalty; gradients are cached."""
        from sentence_transformers.sparse_encoder import losses

        return losses.CachedSpladeLoss(
            model,
            losses.SparseMultipleNegativesRankingLoss(model),
            document_regularizer_weight=params["document"],
            query_regularizer_weight=params["query"],
            mini_batch_size=_AT_ONCE,
        )

    def search(self, ids: Sequence[str], matrix: Any, row: Any, depth: int) -> Hits:
        """The best items that share a word with the query."""
        scores = np.asarray((matrix @ row.T).todense(), np.float32).ravel()
        return [pair for pair in best(ids, scores, depth) if pair[1] > 0]

    def bytes_an_item(self, matrix: Any) -> float:
        """A posting has a number and a weight."""
        return 8.0 * int(matrix.nnz) / int(matrix.shape[0])
