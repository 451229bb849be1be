"""The generator `vllm`: a language model by vLLM in this process, on a GPU or on the CPU.

One engine per process: vLLM gives its memory back only when the process ends. Each finished answer
makes room for the next prompt, so the batch stays full. Prompts that don't fit the context never
reach the engine, because they would stop it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import count, islice
from typing import Any

from pydantic import Field, field_validator

from cogr.errors import GeneratorError
from indexers.generators import Answer, Completion, Context, Failure, Generator, Request, decided
from indexers.generators.model_folders import (
    Encoded,
    LocalModelGenerator,
    LocalModelOptions,
    first_line,
    is_small,
    loading,
    read_json,
)
from indexers.telemetry import prometheus

_OURS = {"model", "tokenizer", "trust_remote_code", "load_format", "logits_processors"}
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


class VllmOptions(LocalModelOptions):
    """Options of the kind `vllm`; see `LocalModelOptions` for the rest.

    Attributes:
        engine: arguments of vLLM's engine over ours, such as `gpu_memory_utilization` and
            `tensor_parallel_size`; not those that name the model or run its code.
        in_flight: prompts handed to the engine at once. Its memory decides how many it works on (at
            most 1,024 by vLLM's defaults); the others wait, so that it is never idle.
    """

    engine: dict[str, Any] = Field(default_factory=dict)
    in_flight: int = Field(default=2048, ge=1)

    def make(self, _: Context) -> Generator:
        return VllmGenerator(self)

    @field_validator("engine")
    @classmethod
    def _is_usable(cls, engine: dict[str, Any]) -> dict[str, Any]:
        for name in _OURS & engine.keys():
            raise ValueError(f"{name} can't be set here: CoGR does; the model is generator.model")
        length = engine.get("max_model_len", 1)
        if type(length) is not int or length < 1:
            raise ValueError(f"max_model_len must be a number of tokens above 0, not {length!r}")
        return engine


class VllmGenerator(LocalModelGenerator):
    """vLLM's offline engine. Loads at the first request (about 30 s on a CPU).

    The engine is seeded, not the request. Sampling also depends on the other prompts in the batch,
    so the same prompt may get another text the next time.
    """

    options: VllmOptions
    kind = "vllm"
    keeps_memory = True

    def __init__(self, options: VllmOptions) -> None:
        super().__init__(options)
        self.context = options.engine.get("max_model_len", self.context)
        self._numbers = count()  # The engine accepts each only once.

    @cached_property
    def _engine(self) -> Any:
        set_environment()
        let_modules_be_read()
        from vllm import LLM

        arguments = self.engine_arguments()
        with loading(f"With vLLM the model {self.folder}"), prometheus.ENGINE_LOAD_SECONDS.time():
            return LLM(**arguments)

    def engine_arguments(self) -> dict[str, Any]:
        """What vLLM's `LLM` is made with."""
        options = self.options
        arguments: dict[str, Any] = {
            "model": str(self.folder),
            "tokenizer": str(self.folder),
            "dtype": "float32" if is_small(self.folder) else "auto",
            "max_model_len": self.context,
            "seed": options.seed,
            "trust_remote_code": False,
            "load_format": "safetensors",
            # The model's own sampling defaults (penalties and the like) are ignored.
            "generation_config": "vllm",
            # Compiling would need a C++ compiler on the machine and a minute more to load.
            "enforce_eager": on_cpu(),
            "disable_log_stats": True,
        } | options.engine
        if on_cpu():
            # Whole blocks of a prompt's beginning are shared, and the instruction has some 40
            # tokens: vLLM's 128 share none.
            arguments["block_size"] = 32
        if options.adapter:
            config = options.adapter / "adapter_config.json"
            rank = int(read_json(config, f"The adapter {options.adapter}")["r"])
            fits = min((known for known in _RANKS if known >= rank), default=rank)
            arguments |= {"enable_lora": True, "max_lora_rank": fits}
        return arguments

    @cached_property
    def _sampling(self) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if self.options.yes_or_no:
            words = [token for tokens in self.yes_and_no for token in tokens]
            own = {"temperature": 0.0, "max_tokens": 1, "logprob_token_ids": words}
        else:
            own = self.options.sampling.model_dump() | {"stop_token_ids": self.stops}
        return SamplingParams(**own, output_kind=RequestOutputKind.FINAL_ONLY)

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Answers as they are finished, not in the order of the requests."""
        source = iter(requests)
        under_way: dict[str, Encoded] = {}
        try:
            while (
                new := list(islice(source, self.options.in_flight - len(under_way)))
            ) or under_way:
                yield from self._begin(new, under_way)
                for output in self._step() if under_way else ():
                    if output.finished:
                        request, _ = under_way.pop(output.request_id)
                        yield self._completion(request, output.outputs[0])
        finally:
            if under_way:
                self._engine.llm_engine.abort_request(list(under_way))

    def _step(self) -> list[Any]:
        try:
            return list(self._engine.llm_engine.step())
        except Exception as error:  # an engine in a process of its own raises none of Python's
            adapter = f" and the adapter {self.options.adapter}" if self.options.adapter else ""
            raise GeneratorError(
                f"vLLM failed with the model {self.folder}{adapter} ({first_line(error)}); "
                'generator.name = "transformers" may load it.'
            ) from error

    def _begin(self, new: Iterable[Request], under_way: dict[str, Encoded]) -> list[Failure]:
        fitting, failed = self.encoded(new)
        from vllm.inputs import tokens_input

        for encoded in fitting:
            id_ = str(next(self._numbers))
            self._engine.llm_engine.add_request(
                id_, tokens_input(encoded[1]), self._sampling, lora_request=self._adapter
            )
            under_way[id_] = encoded
        return failed

    def _completion(self, request: Request, written: Any) -> Completion:
        if self.options.yes_or_no:
            logprobs = {token: one.logprob for token, one in written.logprobs[0].items()}
            yes, no = (
                sum(math.exp(logprobs.get(token, -math.inf)) for token in tokens)
                for tokens in self.yes_and_no
            )
            return decided(request.id, yes, no)
        truncated, size = written.finish_reason == "length", len(written.token_ids)
        return Completion(request.id, written.text, tokens=size, truncated=truncated)

    @cached_property
    def _adapter(self) -> Any:
        if not self.options.adapter:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest("adapter", 1, str(self.options.adapter))

    def close(self) -> None:
        engine = self.__dict__.pop("_engine", None)
        if engine is not None:
            engine.llm_engine.engine_core.shutdown()


def on_cpu() -> bool:
    """Whether the installed vLLM computes on the CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def set_environment() -> None:
    """Set what vLLM reads from the environment, where the user has not. Call before vLLM is
    imported.

    The engine runs in this process; usage reports are off; it logs errors only. On the CPU, threads
    are not pinned, so that OMP_NUM_THREADS counts and two engines don't sit on the same core, and
    the cache takes 1 GiB, not half the memory.
    """
    defaults = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def let_modules_be_read() -> None:
    """On a CPU vLLM (0.31) reads the `__dict__` of all that loaded modules hold. llvmlite's
    library, which numba loads, returns a function for any attribute name, `__dict__` included.
    """
    if (llvmlite := sys.modules.get("llvmlite.binding.ffi")) is not None:
        llvmlite.lib._fntab.setdefault("__dict__", {})
