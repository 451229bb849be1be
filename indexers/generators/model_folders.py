"""Model folders: found, checked and named before anything heavy is loaded. Shared by the kinds that
load a model.

A model is a folder in Hugging Face layout with safetensors weights, or a name on the Hugging Face
hub. Nothing is unpickled and no code of a model is run (`trust_remote_code` is off). Loading and
generating are the business of `transformers_lm` and `vllm_lm`.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

from cogr.errors import GeneratorError, ServiceError, require
from cogr.prompts import Prompt, render
from cogr.redaction import masked
from cogr.settings.indexing import Sampling
from cogr.store import file_sha256
from indexers.generators import YES_AND_NO, Failure, Generator, Options, Request

MIN_ROOM = 32
"""Tokens that a prompt must leave free in the context; with less, no useful list of keywords fits.
"""

_SMALL = 64 * 2**20

HUB_SECONDS = 5.0
"""Longest wait for the hub. Its own client has no time-out; a slower hub counts as unreachable."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
_DECIDING = (".safetensors", ".json", ".jinja", ".model", ".txt")


class LocalModelOptions(Options):
    """Options of the kinds that load a model in this process.

    Attributes:
        model: a folder with config.json, tokenizer and safetensors, or a name on the Hugging Face
            hub.
        adapter: the folder of a LoRA adapter (adapter_config.json, adapter_model.safetensors) of
            this model, see `with_base`.
        yes_or_no: answer with one token; a completion's confidence is P(yes) of yes and no.
    """

    model: str
    adapter: Path | None = None
    sampling: Sampling = Sampling()
    seed: int = 0
    yes_or_no: bool = False


def with_base(model: str) -> tuple[str, Path | None]:
    """A model and no adapter; for the folder of an adapter, its base and that folder. A base may be
    named by its path from there.

    Raises GeneratorError for an adapter that names no base.
    """
    folder = Path(model).expanduser()
    if not _is_adapter(folder):
        return model, None
    base = read_json(folder / "adapter_config.json", "").get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise GeneratorError(
            f"The adapter {folder} names no base model; set base_model_name_or_path in its "
            "adapter_config.json."
        )
    beside = folder / base
    return (str(beside.resolve()) if beside.is_dir() else base), folder


def _is_adapter(folder: Path) -> bool:
    return (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()


def resolve_model(model: str) -> Path:
    """The checked folder of a model.

    Raises:
        GeneratorError: the folder is missing or not a usable model; names the file.
        ServiceError: the hub can't be reached and the model is not in its local cache.
    """
    folder = model_folder(model, _HUB_FILES)
    if _is_adapter(folder):
        base = read_json(folder / "adapter_config.json", "").get("base_model_name_or_path")
        raise GeneratorError(
            f"{folder} is an adapter{f' of {base}' if base else ''}, not a model; name its base "
            "as the model, or merge the adapter into it."
        )
    if not any(file.is_file() for file in folder.glob("*.safetensors")):
        raise GeneratorError(
            f"The model folder {folder} has no weights; it needs model.safetensors (pickled "
            "weights can run anything; convert them)."
        )
    return folder


def model_folder(model: str, files: Sequence[str]) -> Path:
    """The folder of a model; of one on the hub, with the files of these patterns.

    Raises GeneratorError and ServiceError as `resolve_model`, but for what is in the folder.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if model.startswith((".", "~", "/")) or not _HUB_NAME.fullmatch(model):
        raise GeneratorError(
            f"There is no model folder {model}; give a folder in Hugging Face layout, or a hub "
            "name such as Qwen/Qwen3-1.7B."
        )
    return _from_hub(model, files)


def _from_hub(name: str, files: Sequence[str]) -> Path:
    require(f"The model {name} on the Hugging Face hub", "train", "huggingface_hub")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        here = not _hub_answers()
        return Path(snapshot_download(name, allow_patterns=list(files), local_files_only=here))
    except RepositoryNotFoundError as error:
        raise GeneratorError(
            f"The Hugging Face hub has no model {name} that may be read; check the name, or set "
            "HF_TOKEN."
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise ServiceError(
            f"The model {name} is not in the local Hugging Face cache, and the hub can't be "
            "reached; download it where there is a network, or give a folder."
        ) from error


def _hub_answers() -> bool:
    import httpx
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS)
    except (httpx.HTTPError, OSError):  # The latter where HF_HUB_OFFLINE is set.
        return False
    return True


def check_adapter(folder: Path) -> None:
    """Raise GeneratorError when a folder is no LoRA adapter in safetensors."""
    config = read_json(folder / "adapter_config.json", f"The adapter folder {folder}")
    weights = folder / "adapter_model.safetensors"
    if config.get("peft_type") != "LORA" or not weights.is_file():
        raise GeneratorError(
            f"The adapter {folder}, a {config.get('peft_type')}, can't be used; it must be a LORA "
            f"with its weights in {weights.name}."
        )


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object from a file; GeneratorError when it is missing or broken."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise GeneratorError(
            f"{what} has no {path.name} ({error.strerror}); is it the right folder?"
        ) from error
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise GeneratorError(f"{path} holds no JSON object; save the model again.")
    return value


def digest(folder: Path) -> str:
    """First 16 hex digits of a sha256 over all that decides what a model or adapter writes:
    weights, tokenizer, config.
    """
    sha = hashlib.sha256()
    for name, size, changed_ns in _deciding_files(folder):
        sha.update(f"{name}\0{_file_digest(folder / name, size, changed_ns)}\n".encode())
    return sha.hexdigest()[:16]


def _deciding_files(folder: Path) -> Iterator[tuple[str, int, int]]:
    own = (file.name for file in folder.iterdir() if file.suffix in _DECIDING and file.is_file())
    for name in sorted(own):
        status = (folder / name).stat()
        yield name, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=4096)
def _file_digest(file: Path, size: int, changed_ns: int) -> str:  # noqa: ARG001  (part of the cache's key)
    return file_sha256(file)


def without_bars() -> None:
    """Keep transformers from drawing progress bars of its own between our lines while it loads and
    saves weights.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()


def load_weights(folder: Path, adapter: Path | None, dtype: Any, *, learns: bool = False) -> Any:
    """The causal language model of a folder, with its adapter, which `learns` further. Raises
    GeneratorError where a file is damaged or weights are lacking, before memory is taken for them.
    Where it learns, memory errors pass unchanged.
    """
    what = f"The model {folder}{f' with the adapter {adapter}' if adapter else ''}"
    with loading(what, memory_errors_pass=learns):
        _, report = _load(folder, device_map="meta")
        lacking = sorted(report["missing_keys"])
        model, _ = (None, None) if lacking else _load(folder, dtype=dtype)
        if model and adapter:
            from peft import PeftModel

            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                model = PeftModel.from_pretrained(model, str(adapter), is_trainable=learns)
            lacking += [one for one in map(_lacking_of, said) if one]
    if lacking:  # They would be random numbers.
        raise GeneratorError(
            f"{what} lacks weights, such as {lacking[0]}: its configuration is of another one, or "
            "files are missing; copy the whole folder again."
        )
    return model


def _load(folder: Path, **how: Any) -> tuple[Any, Mapping[str, Any]]:
    from transformers import AutoModelForCausalLM

    loaded: tuple[Any, Mapping[str, Any]] = AutoModelForCausalLM.from_pretrained(
        folder,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
        **how,
    )
    return loaded


def _lacking_of(said: warnings.WarningMessage) -> str:
    named = re.match(r"Found missing adapter keys[^\[]*\['([^']+)", str(said.message))
    return named[1] if named else ""


def is_out_of_memory(error: BaseException) -> bool:
    """True for the errors of Python and torch that mean that the memory of GPU or machine is used
    up.
    """
    said = any(words in str(error).lower() for words in ("out of memory", "can't allocate memory"))
    return said or isinstance(error, MemoryError)


@contextmanager
def loading(what: str, *, memory_errors_pass: bool = False) -> Iterator[None]:
    """Whatever a library raises for a damaged file becomes one sentence, a GeneratorError."""
    try:
        yield
    except Exception as error:  # They have no narrower class in common.
        if memory_errors_pass and is_out_of_memory(error):
            raise
        raise GeneratorError(f"{what} can't be loaded ({first_line(error)}).") from error


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, left-padding, without running any code of the model's."""
    from transformers import AutoTokenizer

    with loading(f"The tokenizer in {folder}"):
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, padding_side="left"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def shared_tokenizer(folder: Path) -> Any:
    """`load_tokenizer`, once in a process while the folder's files stay as they are; callers must
    not change it.
    """
    return _known_tokenizer(folder, tuple(_deciding_files(folder)))


@lru_cache(maxsize=4)
def _known_tokenizer(folder: Path, files: tuple[tuple[str, int, int], ...]) -> Any:  # noqa: ARG001  (part of the cache's key)
    return load_tokenizer(folder)


def encode(prompt: Prompt, tokenizer: Any) -> list[int]:
    """The prompt's token ids.

    A chat template writes its own special tokens; plain text gets the tokenizer's.
    """
    text = render(prompt, tokenizer)
    special = not tokenizer.chat_template
    return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def context_length(folder: Path) -> int:
    """Tokens of prompt and completion together that the model was built for, as its configuration
    or transformers says. Raises GeneratorError where neither does, or the configuration is damaged.
    """
    from transformers import AutoConfig

    with loading(f"The configuration in {folder}"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    own = getattr(config.get_text_config(), "max_position_embeddings", None)
    if own is None:
        raise GeneratorError(
            f"{folder / 'config.json'} does not give the length of its context; add "
            "max_position_embeddings."
        )
    return int(own)


def is_small(folder: Path) -> bool:
    """Whether a model has less than 64 MiB of weights. Such a one computes in float32, fast enough
    anywhere, and answers alike on all machines.
    """
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) < _SMALL


def has_bfloat16(device: str) -> bool:
    """Whether the device computes in bfloat16 at speed."""
    import torch

    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    known = torch.cpu.get_capabilities() if device == "cpu" else {}
    return any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for one sentence; an endpoint may repeat a key that it was
    sent.
    """
    lines = masked(str(error)).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")


Encoded = tuple[Request, list[int]]


class LocalModelGenerator(Generator):
    """What the kinds that load a model in this process share: the checked folder, its tokenizer,
    prompts that fit.

    Raises:
        GeneratorError: the model or adapter can't be used; checked when made, loaded later.
        MissingExtraError: a package is not installed.
    """

    kind: ClassVar[str]

    def __init__(self, options: LocalModelOptions) -> None:
        if options.adapter:
            require(f"The generator {self.kind}, of a LoRA adapter,", "train", "peft")
        self.options = options
        self.folder = resolve_model(options.model)
        if options.adapter:
            check_adapter(options.adapter)
        self.context = context_length(self.folder)

    @cached_property
    def fingerprint(self) -> Mapping[str, object]:
        """Folders of equal content have equal fingerprints, wherever they lie."""
        options = self.options
        return {
            "kind": self.kind,
            "model": self.folder.name
            if Path(options.model).expanduser().is_dir()
            else options.model,
            "weights": digest(self.folder),
            "adapter": digest(options.adapter) if options.adapter else None,
            "context": self.context,
            "sampling": options.sampling.model_dump(),
            "seed": options.seed,
            **({"yes_or_no": True} if options.yes_or_no else {}),
        }

    @cached_property
    def tokenizer(self) -> Any:
        return shared_tokenizer(self.folder)

    @cached_property
    def stops(self) -> list[int]:
        """Tokens that end a completion: the model's and the tokenizer's."""
        named = (self.folder / name for name in ("generation_config.json", "config.json"))
        own = next(
            (read_json(file, "").get("eos_token_id") for file in named if file.is_file()), None
        )
        listed = [*own] if isinstance(own, list) else [own]
        return sorted({one for one in (*listed, self.tokenizer.eos_token_id) if one is not None})

    @cached_property
    def yes_and_no(self) -> tuple[list[int], list[int]]:
        """The tokens that an answer of yes begins with, and those of no.

        Raises GeneratorError where they are the same.
        """
        yes, no = (
            {
                self.tokenizer(space + spelled, add_special_tokens=False)["input_ids"][0]
                for space in ("", " ")
                for spelled in (word, word.capitalize())
            }
            for word in YES_AND_NO
        )
        if not yes - no or not no - yes:
            raise GeneratorError(
                f"The model {self.folder} can't answer yes or no: its tokenizer doesn't tell the "
                "words apart; use another model as the judge."
            )
        return sorted(yes - no), sorted(no - yes)

    def encoded(self, requests: Iterable[Request]) -> tuple[list[Encoded], list[Failure]]:
        """Requests with their prompts' token ids, and those whose prompt is too long for the
        context.
        """
        fitting: list[Encoded] = []
        failed: list[Failure] = []
        for request in requests:
            ids = encode(request.prompt, self.tokenizer)
            if len(ids) + MIN_ROOM <= self.context:
                fitting.append((request, ids))
                continue
            reason = (
                f"the prompt has {len(ids):,} tokens; the model's {self.context:,} must hold it "
                f"and {MIN_ROOM} of an answer"
            )
            failed.append(Failure(request.id, reason))
        return fitting, failed
