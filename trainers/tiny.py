"""The model `tiny`: a Llama of some hundred thousand parameters with a tokenizer trained on the
catalogue.

It learns everything from SFT and the rounds, and serves demos, tests and rehearsals of a whole run
on a CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cogr.records import Dataset
from indexers.generators.model_folders import without_bars

PAD, END, WRITE = "<|pad|>", "<|end|>", "<|keywords|>"
HIDDEN, LAYERS, HEADS = 96, 2, 4
"""Attention heads: two attend to too little, eight are too narrow at this width."""
CONTEXT = 512
"""Tokens of prompt and completion together: a description and its keywords."""
SPREAD = 0.1
"""Standard deviation of the first weights; the usual 0.02 does not learn to copy at this size."""
MAX_TOKENS = 8000
"""Of the tokenizer, bytes included: all words that occur twice, up to here. The output layer is
most of such a model's work, and with four times as many the words are too rare to be learned.
"""
_MAX_WORD = 64
# The user's message alone, then a mark of its own: the boundary between prompt and answer is one
# token, never a merge.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ message['content'] }}{% "
    "endif %}{% endfor %}"
    "{% if add_generation_prompt %}" + WRITE + "{% endif %}"
)


def tiny_model(folder: Path, texts: Iterable[str], seed: int) -> None:
    """Write the untrained model and its tokenizer into a folder; equal arguments give an equal
    model.
    """
    sizes: dict[str, Any] = {
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
    }
    sizes |= {"num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    sizes |= {"max_position_embeddings": CONTEXT, "bos_token_id": None}
    sizes |= {"tie_word_embeddings": True, "initializer_range": SPREAD}
    random_model(folder, tiny_tokenizer(texts), seed, "llama", **sizes)


def random_model(
    folder: Path,
    tokenizer: Any,
    seed: int,
    kind: str,
    family: str = "AutoModelForCausalLM",
    **sizes: Any,
) -> None:
    """Write a model of an architecture of transformers' with random weights, and its tokenizer."""
    import torch
    import transformers

    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = transformers.AutoConfig.for_model(kind, vocab_size=len(tokenizer), **ends, **sizes)
    without_bars()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        getattr(transformers, family).from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tiny_tokenizer(texts: Iterable[str], most: int = MAX_TOKENS) -> Any:
    """A tokenizer of bytes and the catalogue's frequent words, lower-cased. A frequent word is one
    token; a rare one is split into the longest pieces that fit.

    Whole words without the merges that lead to them: half the vocabulary of byte-pair encoding for
    the same texts, and the output layer is most of such a small model's work.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    # The search for the longest piece takes time quadratic in a word's length, so very long words
    # are cut.
    cut = pre_tokenizers.Split(Regex(f".{{1,{_MAX_WORD}}}"), "isolated")
    splitter = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=True), cut])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words = Counter(
        word
        for text in texts
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))
        if len(word) > 1
    )
    known = [PAD, END, WRITE, *sorted(alphabet)]
    frequent = sorted((-count, word) for word, count in words.items() if count > 1)
    known += [word for _, word in frequent[: max(0, most - len(known))]]
    vocabulary = {token: number for number, token in enumerate(known)}
    tokenizer = Tokenizer(
        models.WordPiece(
            vocabulary,
            unk_token=PAD,
            continuing_subword_prefix="",
            max_input_chars_per_word=_MAX_WORD,
        )
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = (
        normalizer,
        splitter,
        decoders.ByteLevel(),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[WRITE],
        padding_side="left",
        model_max_length=CONTEXT,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def catalogue_texts(dataset: Dataset) -> Iterator[str]:
    """The texts that the tokenizer learns from: every item, and the training queries.

    It never sees the words of a test query.
    """
    for item in dataset.items:
        yield f"{item.title}\n{item.text}"
    for query in dataset.queries.get("train", ()):
        yield query.text
