"""The generator `transformers`: a language model in this process by Hugging Face transformers,
batch by batch.

The kind for machines where vLLM does not run, and for small models. Prompts are sorted by length
inside a window, so that batches are even; answers stream out after every batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

from cogr.errors import GeneratorError
from indexers.generators import Answer, Completion, Context, Generator, Request, batched, decided
from indexers.generators.constraint import (
    KeywordConstraint,
    allowed_tokens,
    known_keywords,
    without_last,
)
from indexers.generators.model_folders import (
    Encoded,
    LocalModelGenerator,
    LocalModelOptions,
    first_line,
    has_bfloat16,
    is_small,
    without_bars,
)
from indexers.telemetry import prometheus

_WINDOW_BATCHES = 8


class TransformersOptions(LocalModelOptions):
    """Options of the kind `transformers`; see `LocalModelOptions`."""

    def make(self, context: Context) -> Generator:
        return TransformersGenerator(self, context.store)


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

        if self.options.yes_or_no:
            for _, same in groupby(requests, key=lambda request: request.entity.id):
                yield from self._decide(same)
            return
        torch.manual_seed(self.options.seed)
        for window in batched(requests, self._batch * _WINDOW_BATCHES):
            fitting, failed = self.encoded(window)
            yield from failed
            # Longest first: a batch that is too large for the memory fails at once. Ties in order
            # of arrival.
            fitting.sort(key=lambda pair: -len(pair[1]))
            for batch in batched(fitting, self._batch):
                yield from self._answer(batch)

    def _answer(self, batch: list[Encoded]) -> Iterator[Answer]:
        import torch

        padded = self.tokenizer.pad({"input_ids": [ids for _, ids in batch]}, return_tensors="pt")
        padded = padded.to(self._model.device)
        prompt_length = padded["input_ids"].shape[1]
        new_tokens = min(self.options.sampling.max_tokens, self.context - prompt_length)
        with torch.inference_mode():
            written = self._model.generate(
                input_ids=padded["input_ids"],
                attention_mask=padded["attention_mask"],
                generation_config=self._generation_config(new_tokens),
                prefix_allowed_tokens_fn=self._vocabulary
                and allowed_tokens(self._vocabulary, prompt_length),
            )
        for (request, _), row in zip(batch, written[:, prompt_length:].tolist(), strict=True):
            yield self._completion(request, row)

    def _decide(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Yes or no to prompts that begin alike, of which this beginning is read once."""
        import torch

        fitting, failed = self.encoded(requests)
        yield from failed
        if not fitting:
            return
        texts = [ids for _, ids in fitting]
        sides = zip(min(texts), max(texts), strict=False)
        alike = len([*takewhile(lambda pair: pair[0] == pair[1], sides)])
        shared = min([alike, *(len(ids) - 1 for ids in texts)])
        read, device = self._model.get_decoder(), self._model.device
        head = self._model.get_output_embeddings().weight
        words = [head[ids].float() for ids in self.yes_and_no]
        with torch.inference_mode():
            beginning = read(torch.tensor([texts[0][:shared]], device=device), use_cache=True)
            for batch in batched(fitting, self._batch):
                ends = {"input_ids": [ids[shared:] for _, ids in batch]}
                padded = self.tokenizer.pad(ends, return_tensors="pt").to(device)
                seen = torch.ones((len(batch), shared), dtype=torch.long, device=device)
                mask = torch.cat([seen, padded["attention_mask"]], 1)
                known = copy.deepcopy(beginning.past_key_values)
                known.batch_repeat_interleave(len(batch))
                last = read(
                    padded["input_ids"],
                    attention_mask=mask,
                    position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, shared:],
                    past_key_values=known,
                ).last_hidden_state[:, -1]
                yes, no = ((last.float() @ word.T).double().logsumexp(1) for word in words)
                for (request, _), p in zip(batch, (yes - no).sigmoid().tolist(), strict=True):
                    yield decided(request.id, p, 1 - p)

    def _completion(self, request: Request, row: list[int]) -> Completion:
        end = next((i for i, token in enumerate(row) if token in self.stops), None)
        kept = row if end is None else row[:end]
        text = self.tokenizer.decode(kept, skip_special_tokens=True)
        if self._vocabulary is not None and end is None:
            text = without_last(text)
        return Completion(request.id, text, tokens=len(kept), truncated=end is None)

    @cached_property
    def _vocabulary(self) -> KeywordConstraint | None:
        if self._items is None:
            return None
        return KeywordConstraint(
            known_keywords(self._items), self.tokenizer, self.stops, self.options.k_max
        )

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
    from transformers import AutoModelForCausalLM, GenerationConfig

    without_bars()
    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    device = next((name for name, there in usable.items() if there), "cpu")
    half = torch.bfloat16 if has_bfloat16(device) else torch.float16
    halves = not is_small(folder) and (has_bfloat16(device) or device == "cuda")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=half if halves else torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        )
        if adapter:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, str(adapter))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        adapted = f" with the adapter {adapter}" if adapter else ""
        raise GeneratorError(
            f"The model {folder}{adapted} can't be loaded ({first_line(error)})."
        ) from error
    model.generation_config = GenerationConfig()
    return model.to(device).eval()
