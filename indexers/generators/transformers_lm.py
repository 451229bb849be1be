"""The generator `transformers`: a language model in this process by Hugging Face transformers,
batch by batch.

The kind for machines where vLLM does not run, and for small models. Prompts are sorted by length
inside a window, so that batches are even; answers stream out after every batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

from indexers.generators import Answer, Completion, Context, Generator, Request, batched, decided
from indexers.generators.model_folders import (
    Encoded,
    LocalModelGenerator,
    LocalModelOptions,
    has_bfloat16,
    is_small,
    load_weights,
    without_bars,
)
from indexers.telemetry import prometheus

_WINDOW_BATCHES = 8


class TransformersOptions(LocalModelOptions):
    """Options of the kind `transformers`; see `LocalModelOptions`."""

    def make(self, _: Context) -> Generator:
        return TransformersGenerator(self)


@dataclass(frozen=True)
class _Read:
    """Texts that the model has read, a row each.

    Attributes:
        known: their keys and values.
        mask: 1 where a text has a token, 0 where it is padded, (rows, tokens).
        state: of the last token, (rows, hidden).
    """

    known: Any
    mask: Any
    state: Any

    def splits(self, tokens: int) -> bool:
        """Whether rows of so many tokens can be repeated, with padding between them: each layer
        keeps keys and values by token, and no sliding window ends among them.
        """
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

        return all(
            type(layer) is DynamicLayer
            or (type(layer) is DynamicSlidingWindowLayer and layer.sliding_window > tokens)
            for layer in getattr(self.known, "layers", [None])
        )

    def rows(self, rows: Sequence[int]) -> _Read:
        """These rows, in this order; the keys and values of `self` stay."""
        known = copy.copy(self.known)
        known.layers = [*map(copy.copy, known.layers)]
        known.batch_select_indices(self.mask.new_tensor(rows))
        return _Read(known, self.mask[rows], self.state[rows])


def _alike(prompts: Sequence[Encoded]) -> int:
    """How many tokens all of these begin with; of each at least one is left."""
    texts = [ids for _, ids in prompts]
    sides = zip(min(texts), max(texts), strict=False)
    alike = len([*takewhile(lambda pair: pair[0] == pair[1], sides)])
    return min(alike, *(len(ids) - 1 for ids in texts))


class TransformersGenerator(LocalModelGenerator):
    """Batched `generate` of a causal language model. Loads it at the first request.

    The same requests in the same order with the same seed give the same text on the same machine.
    """

    kind = "transformers"

    @cached_property
    def _model(self) -> Any:
        with prometheus.ENGINE_LOAD_SECONDS.time():
            return load_causal_lm(self.folder, self.options.adapter)

    @cached_property
    def _batch(self) -> int:
        return 200 if is_small(self.folder) else 32

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        import torch

        answers = self._decide if self.options.yes_or_no else self._write
        torch.manual_seed(self.options.seed)
        for window in batched(requests, self._batch * _WINDOW_BATCHES):
            fitting, failed = self.encoded(window)
            yield from failed
            yield from answers(fitting) if fitting else ()

    def _read(self, texts: Sequence[list[int]], before: _Read | None) -> _Read | None:
        """Read texts, each after its row of `before`, whose keys and values are extended in place.
        Nothing is read where all are empty.
        """
        import torch

        if not any(texts):
            return before
        padded, rest = self._padded(texts), dict[str, Any]()
        ids, mask = padded["input_ids"], padded["attention_mask"]
        if before is not None or len(texts) > 1:  # Some models take no positions.
            mask = mask if before is None else torch.cat([before.mask, mask], 1)
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            rest = {"attention_mask": mask, "position_ids": positions}
        with torch.inference_mode():
            known = before and before.known
            output = self._model.get_decoder()(ids, past_key_values=known, use_cache=True, **rest)
        known = getattr(output, "past_key_values", None)
        return _Read(known, mask, output.last_hidden_state[:, -1])

    def _beginning(self, fitting: list[Encoded]) -> _Read | None:
        """What all of these prompts begin with, the instruction; None where nothing, or where
        prompts must be read whole.
        """
        longest = max(len(ids) for _, ids in fitting)
        more = longest if self.options.yes_or_no else self.options.sampling.max_tokens
        first = self._read([fitting[0][1][: _alike(fitting)]], None)
        return first if first and first.splits(longest + more) else None

    def _padded(self, texts: Sequence[list[int]]) -> Any:
        padded = self.tokenizer.pad({"input_ids": texts}, return_tensors="pt")
        return padded.to(self._model.device)

    def _write(self, fitting: list[Encoded]) -> Iterator[Answer]:
        beginning = self._beginning(fitting)
        # Longest first: a batch that is too large for the memory fails at once. Ties in order of
        # arrival.
        fitting.sort(key=lambda pair: -len(pair[1]))
        for batch in batched(fitting, self._batch):
            yield from self._written(batch, beginning)

    def _written(self, batch: list[Encoded], beginning: _Read | None) -> Iterator[Answer]:
        import torch

        start = beginning.mask.shape[1] if beginning else 0
        padded = self._padded([ids[start:] for _, ids in batch])
        first = padded["input_ids"].new_tensor([ids[:start] for _, ids in batch])
        ids = torch.cat([first, padded["input_ids"]], 1)
        mask = torch.cat([torch.ones_like(first), padded["attention_mask"]], 1)
        prompt_length = ids.shape[1]
        new_tokens = min(self.options.sampling.max_tokens, self.context - prompt_length)
        with torch.inference_mode():
            written = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=beginning and beginning.rows([0] * len(batch)).known,
                generation_config=self._generation_config(new_tokens),
            )
        for (request, _), row in zip(batch, written[:, prompt_length:].tolist(), strict=True):
            yield self._completion(request, row)

    def _decide(self, fitting: list[Encoded]) -> Iterator[Answer]:
        """Yes or no. What the prompts of an item begin with is read once for all of them; items of
        about the same length are read at once.
        """
        beginning = self._beginning(fitting)
        start = beginning.mask.shape[1] if beginning else 0
        head = self._model.get_output_embeddings().weight.detach()
        words = [head[ids].float() for ids in self.yes_and_no]
        for parts in self._in_batches(fitting):
            shared = [_alike(part) if beginning and len(part) > 1 else start for part in parts]
            pairs = [(n, pair) for n, part in enumerate(parts) for pair in part]
            bodies = [part[0][1][start:end] for part, end in zip(parts, shared, strict=True)]
            items = self._read(bodies, beginning and beginning.rows([0] * len(parts)))
            pairs.sort(key=lambda pair: len(pair[1][1]) - shared[pair[0]])
            for some in batched(pairs, self._batch // 2):  # Less padding is worth another step.
                ends = [ids[shared[n] :] for n, (_, ids) in some]
                last = self._read(ends, items and items.rows([n for n, _ in some]))
                assert last is not None
                yes, no = ((last.state.float() @ word.T).double().logsumexp(1) for word in words)
                for (_, (request, _)), p in zip(some, (yes - no).sigmoid().tolist(), strict=True):
                    yield decided(request.id, p, 1 - p)

    def _in_batches(self, fitting: list[Encoded]) -> Iterator[list[list[Encoded]]]:
        """Prompts by item, those of about the same length together, longest first; items with one
        prompt apart, which is read in one step.
        """
        by_item = groupby(fitting, key=lambda pair: pair[0].entity.id)
        parts = [part for _, same in by_item for part in batched(same, self._batch)]
        parts.sort(key=lambda part: (len(part) == 1, -len(part[0][1])))
        batch: list[list[Encoded]] = []
        for part in parts:
            apart = batch and len(part) == 1 < len(batch[0])
            if apart or (batch and sum(map(len, [*batch, part])) > self._batch):
                yield batch
                batch = []
            batch.append(part)
        yield batch

    def _completion(self, request: Request, row: list[int]) -> Completion:
        end = next((i for i, token in enumerate(row) if token in self.stops), None)
        kept = row if end is None else row[:end]
        text = self.tokenizer.decode(kept, skip_special_tokens=True)
        return Completion(request.id, text, tokens=len(kept), truncated=end is None)

    def _generation_config(self, new_tokens: int) -> Any:
        from transformers import GenerationConfig

        sampling = self.options.sampling
        drawing = sampling.model_dump(include={"temperature", "top_p", "top_k"})
        return GenerationConfig(
            max_new_tokens=new_tokens,
            do_sample=sampling.temperature > 0,
            eos_token_id=self.stops,
            pad_token_id=self.tokenizer.pad_token_id,
            **(drawing if sampling.temperature > 0 else {}),
        )

    def close(self) -> None:
        if self.__dict__.pop("_model", None) is not None:
            import gc

            import torch

            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def load_causal_lm(folder: Path, adapter: Path | None) -> Any:
    """The model, with its adapter, on the best device of this machine, ready to generate; in
    bfloat16 where the device computes in it, else float32 (float16 on old GPUs), as small ones.

    The model's own generation defaults (penalties, temperatures) are dropped: only the options'
    sampling counts.
    """
    import torch
    from transformers import GenerationConfig

    without_bars()
    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    device = next((name for name, there in usable.items() if there), "cpu")
    half = torch.bfloat16 if has_bfloat16(device) else torch.float16
    halves = not is_small(folder) and (has_bfloat16(device) or device == "cuda")
    model = load_weights(folder, adapter, half if halves else torch.float32)
    model.generation_config = GenerationConfig()
    return model.to(device).eval()
