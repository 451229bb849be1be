"""The settings of training: the tables under `[training]`. Defaults are the paper's where it names
a value.

The paper's names are verl's; docs/training.md says which of ours each one is. What checks them
against a data set, a tokenizer or the number of processes is `trainers.training`.

The table `[compare]` is the budget that every method of `cogr-train compare` has, and the models
that some of them start from; what they do is in `trainers.rivals`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from cogr.settings.table import LONGEST, Table, http_url, usable_path

ItemsFrom = Literal["auto", "self", "labels", "extractive", "statistical"]
QueriesFrom = Literal["items", "statistical", "proposals", "edits"]
Rules = Literal["own", "paper"]
TrainingVariant = Literal["full", "no-sft", "frozen-items", "shared"]
Rollouts = Literal["transformers", "vllm-colocate", "vllm-server"]


class TinySettings(Table):
    """The model `tiny`: a Llama with a tokenizer of its own, trained on the catalogue."""

    hidden: int = Field(96, ge=16, multiple_of=8, description="Width, shared by four heads")
    layers: int = Field(2, ge=1, description="Decoder layers")


class SftSettings(Table):
    """Supervised fine-tuning: the paper's phase 1, algorithm 1."""

    items_from: ItemsFrom = Field(
        "auto",
        description=(
            "What writes the first item keywords: self (the model, as in the paper); labels (pairs "
            "of words that relevant items share), extractive or statistical for a model that can't "
            "write any; auto is labels for tiny, else self"
        ),
    )
    queries_from: QueriesFrom = Field(
        "items",
        description=(
            "What a query learns to write: items (the most frequent keywords of its relevant "
            "items, algorithm 1), statistical (what that generator, which has not seen its labels, "
            "writes for it), proposals (a random half of the candidates that its prompt shows: "
            "SFT teaches to copy, the rounds teach what to choose) or edits (the set that its "
            "prompt shows, each keyword kept with probability 0.85 and each candidate added with "
            "0.15, so that the likeliest answer is a copy and samples vary)"
        ),
    )
    item_keywords: int = Field(10, ge=1, description="M: keywords of an item (paper, section 4.3)")
    query_keywords: int = Field(
        15, ge=1, description="N: most frequent keywords of a query's relevant items (section 4.3)"
    )
    item_epochs: float = Field(2.0, gt=0, description="Passes over the items")
    query_epochs: float = Field(2.0, gt=0, description="Passes over the training queries")
    learning_rate: float = Field(
        1e-5, gt=0, description="Peak learning rate; linear decay after a tenth of warm-up"
    )
    batch_size: int = Field(
        32, ge=1, description="Examples in an optimizer step, over all processes"
    )
    micro_batch: int = Field(8, ge=1, description="Examples at once on a device")


class GrpoSettings(Table):
    """GRPO of one side: the paper's phase 2."""

    learning_rate: float = Field(1e-6, gt=0, description="Constant learning rate (verl: optim.lr)")
    epochs: float = Field(1.0, gt=0, description="Passes over the side's entities a round")
    max_steps: int | None = Field(
        None, ge=1, description="Most steps in a round, instead of epochs"
    )
    prompts_per_step: int = Field(
        256, ge=1, description="Items in an optimizer step (verl: train_batch_size)"
    )
    micro_batch: int = Field(
        32,
        ge=1,
        description="Completions at once on a device (verl: ppo_micro_batch_size_per_gpu)",
    )
    reward: str = Field(description="module:function of the reward; see docs/training.md")


class QueryGrpoSettings(GrpoSettings):
    """GRPO of the query side."""

    by: Literal["grpo", "expert"] = Field(
        "grpo",
        description=(
            "Method of training: grpo, or expert: fine-tuning on the best edit of the set in the "
            "prompt, found by exact search (needs prompts.query_variant edit)"
        ),
    )

    epochs: float = Field(
        10.0, gt=0, description="Passes over the training queries in a round (section 4.3)"
    )
    prompts_per_step: int = Field(
        512, ge=1, description="Queries in an optimizer step (verl: train_batch_size)"
    )
    micro_batch: int = Field(
        64,
        ge=1,
        description="Completions at once on a device (verl: ppo_micro_batch_size_per_gpu)",
    )
    reward: str = Field(
        "cogr.rewards:query_reward", description="module:function of the reward (eq. 2)"
    )


class ItemGrpoSettings(GrpoSettings):
    """GRPO of the item side."""

    epochs: float = Field(5.0, gt=0, description="Passes over the items in a round (section 4.3)")
    reward: str = Field(
        "cogr.rewards:item_reward", description="module:function of the reward (eq. 3)"
    )


class LoraSettings(Table):
    """Low-rank adapters instead of all weights; merged into the weights when a stage ends.

    The learning rates of sft, query and item are for full weights; adapters take ten times them.
    """

    rank: int = Field(0, ge=0, description="Rank; 0 trains all weights, as the paper does")


class RolloutSettings(Table):
    """How completions are drawn during GRPO.

    Temperature only: any truncation would bias the importance ratio.
    """

    by: Rollouts = Field(
        "transformers",
        description=(
            "transformers; vllm-colocate (same GPUs) or vllm-server (vllm serve on other GPUs). "
            "vLLM then writes the index builds too"
        ),
    )
    generations: int = Field(8, ge=1, description="Completions per prompt (verl: rollout.n)")
    temperature: float = Field(1.0, gt=0, description="Temperature (paper, table of decoding)")
    max_tokens: int = Field(512, ge=1, description="Longest completion (verl: max_response_length)")
    vllm_url: str | None = Field(None, description="Address of the server, for vllm-server")
    vllm_gpu_share: float = Field(
        0.3, gt=0, le=1, description="Share of GPU memory for vllm-colocate"
    )
    vllm_max_model_len: int | None = Field(
        None,
        ge=1,
        description=(
            "Most tokens of prompt and completion in vllm-colocate; by default those of the "
            "longest prompt and max_tokens, not the model's whole context"
        ),
    )

    _is_url = field_validator("vllm_url")(http_url)


class GateSettings(Table):
    """When a round is built upon."""

    on: bool = Field(
        True,
        description=(
            "Reject a round whose dev F1 is more than publish.tolerance below that of the last "
            "accepted one; it stays on record, and the next round does not start from it. Where "
            "the data have no dev split, a fifth of the "
            "training queries is set apart as one"
        ),
    )


class TrainingSettings(Table):
    """The training loop: SFT, then rounds of GRPO on both sides in turn."""

    start: str = Field(
        "model",
        description=(
            "Pair of round 0: model (the fine-tuned models write it, as in the paper), source "
            "(queries as with model, items by what wrote their targets, see "
            "training.sft.items_from), "
            "statistical (that generator's), or the ids of an item and a query snapshot, "
            "separated by a comma"
        ),
    )
    model: str = Field(
        "tiny",
        description="Start of both sides: a model folder, a Hugging Face name, smollm2 or tiny",
    )
    seed: int = Field(0, ge=0, description="Seed of first weights, data order and rollouts")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description=(
            "Number format of computations; auto is bfloat16 on GPUs that have it. Weights are "
            "kept in float32"
        ),
    )
    f_beta: float = Field(
        1.0, gt=0, description="Beta of the rewards' F measure; above 1 favours recall"
    )
    accelerate: str | None = Field(
        None,
        description=(
            "Configuration file of accelerate, such as examples/accelerate-fsdp2.yaml: how "
            "processes share weights and optimizer; by default each process has all of them"
        ),
    )
    report_to: tuple[Literal["completions", "tensorboard", "mlflow", "trackio"], ...] = Field(
        (),
        description=(
            "What is written besides the step figures: completions (what was sampled and its "
            "reward, as jsonl), the step figures as TensorBoard events, the trainer's own figures "
            "to MLflow or trackio, which need their packages"
        ),
    )
    processes: int = Field(
        1, ge=1, description="Processes of one training stage, one GPU each, by accelerate"
    )
    save_steps: int = Field(
        50,
        ge=0,
        description=(
            "Steps of a training stage between checkpoints, from which it continues after a "
            "crash. 0: no checkpoints"
        ),
    )
    evaluate_steps: int = Field(
        0,
        ge=0,
        description=(
            "Steps of a GRPO stage after which the whole side is generated and its F1 measured, "
            "for the figure of the report. Each time costs an index build of that side, and the "
            "memory of one more model. 0: only after each stage"
        ),
    )
    keep_models: int = Field(
        0,
        ge=0,
        description=(
            "Rounds whose models are kept: the last accepted ones and the best on dev; older "
            "models are removed when a round ends. 0 keeps all"
        ),
    )
    variant: TrainingVariant = Field(
        "full",
        description=(
            "The paper's ablations of training: full; no-sft (the rounds start from the untrained "
            "model); frozen-items (items keep the keywords that the targets of SFT are made of); "
            "shared (one model for both sides, trained with both prompts in turn; SFT takes the "
            "examples of both, for item_epochs)"
        ),
    )
    new_items: float = Field(
        0.0,
        ge=0,
        lt=1,
        description=(
            "Share of the items, by the hash of their ids, that are held out of training with "
            "their labels; cogr-train evaluate --new-items adds them afterwards"
        ),
    )
    rules: Rules = Field(
        "own",
        description=(
            "own: a round takes only those new item sets that don't lower training F1, and a "
            "completion cut at max_tokens scores as over the budget; paper: a round takes all of "
            "them, and a cut completion scores as it is"
        ),
    )
    candidates: int = Field(
        0,
        ge=0,
        description=(
            "Further keyword sets drawn for each item at temperature 1, from which acceptance "
            "may choose; 0: only that of the index build"
        ),
    )
    invented_queries: int = Field(
        0,
        ge=0,
        description=(
            "Made-up queries of two known words to train on as well; word translations learned "
            "from the labels give their items. For few labels and a model without word "
            "knowledge; not in the paper"
        ),
    )
    sft: SftSettings = Field(default_factory=SftSettings)
    query: QueryGrpoSettings = Field(default_factory=QueryGrpoSettings)
    item: ItemGrpoSettings = Field(default_factory=ItemGrpoSettings)
    rollouts: RolloutSettings = Field(default_factory=RolloutSettings)
    lora: LoraSettings = Field(default_factory=LoraSettings)
    tiny: TinySettings = Field(default_factory=TinySettings)
    gate: GateSettings = Field(default_factory=GateSettings)

    _is_path = field_validator("accelerate")(usable_path)

    @property
    def given_items(self) -> bool:
        """Whether the items of round 0 are those that the targets of SFT are made of."""
        return self.variant == "frozen-items" or self.start == "source"

    @property
    def index_by(self) -> Literal["transformers", "vllm"]:
        """The generator of the index builds: the engine that draws the rollouts."""
        return "transformers" if self.rollouts.by == "transformers" else "vllm"


class CompareSettings(Table):
    """How methods are compared. All of them have the same budget, CoGR's too."""

    models: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Model that a method starts from, by method: a folder or a Hugging Face name, such as "
            'splade = "naver/splade_v2_max"'
        ),
    )
    trials: int = Field(
        8,
        ge=1,
        description="Most sets of hyperparameters that a method tries; the best on dev is used",
    )
    seconds: float = Field(
        600.0,
        gt=0,
        le=LONGEST,
        description="Wall time for all trials of one method; no new trial begins after it",
    )
