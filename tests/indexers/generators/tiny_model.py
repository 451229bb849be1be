"""A random language model of about a million parameters with a tokenizer of its own, made in a
second or two; adapters too.

It writes nonsense at the price of nothing: for tests and rehearsals of everything around a real
model. Saved as a Hugging Face folder that transformers, vLLM and TRL load like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] "
    "}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_model(
    folder: Path,
    texts: Iterable[str],
    *,
    seed: int = 0,
    vocabulary: int = 1000,
    layers: int = 4,
    head_size: int = 32,
    context: int = 1024,
    chat: bool = True,
) -> Path:
    """Write a random Llama and a byte-level BPE tokenizer trained on `texts`; the same arguments
    give the same model.

    Args:
        folder: where to, made when it is not there.
        texts: what the tokenizer learns its merges from.
        seed: of the weights.
        vocabulary: tokens at most, 300 at least (bytes and special tokens).
        layers: decoder layers.
        head_size: 32 or 64, which every vLLM backend has kernels for; there are four heads.
        context: tokens of prompt and completion together.
        chat: whether the tokenizer has a chat template.

    Returns:
        The folder.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = train_tokenizer(texts, vocabulary, context, chat)
    hidden = 4 * head_size
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def train_tokenizer(texts: Iterable[str], vocabulary: int, context: int, chat: bool):  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        padding_side="left",
        model_max_length=context,
    )
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_adapter(model: Path, folder: Path, *, seed: int = 0, rank: int = 4) -> Path:
    """Write a random LoRA adapter of the attention of a model, which changes what it writes;
    returns the folder.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = LoraConfig(
        r=rank, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = get_peft_model(
            AutoModelForCausalLM.from_pretrained(model, use_safetensors=True), config
        )
    adapted.save_pretrained(str(folder))
    return folder
