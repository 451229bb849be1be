"""What every training stage imports, imported once by the process that stages are forked from (`launching`).

Importing it is its whole effect: some twenty seconds of torch, transformers and TRL that no stage has to spend again.
"""

from trainers.training.options import hide_vllm

hide_vllm()

import datasets  # noqa: E402, F401
from transformers import (  # noqa: E402
    AutoModelForCausalLM,  # noqa: F401
    AutoTokenizer,  # noqa: F401
    GenerationConfig,  # noqa: F401
    LlamaForCausalLM,  # noqa: F401
    PrinterCallback,  # noqa: F401
)
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer  # noqa: E402, F401

import trainers.training.grpo  # noqa: E402
import trainers.training.stage  # noqa: E402, F401
