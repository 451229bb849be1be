"""What every training stage imports, imported once by the process that stages are forked from
(`launching`).

Some twenty seconds of torch, transformers and TRL that no stage has to spend again. Run as a module
it then waits for stages to fork (`forking.serve`).
"""

import signal

# Ctrl-C ends this process at once, and without a word, while it imports; the command says what
# there is to say.
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)

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

import trainers.training.grpo  # noqa: E402, F401
from trainers.training.forking import serve  # noqa: E402
from trainers.training.stage import main  # noqa: E402

if __name__ == "__main__":
    serve(main)
