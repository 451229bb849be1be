"""The settings of training: the tables under `[training]`. Defaults are the paper's where it names
a value.

The paper's names are verl's; docs/training.md says which of ours each one is. What checks them
against a data set, a tokenizer or the number of processes is `trainers.training`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from cogr.settings.table import SettingsTable, usable_path

ItemsFrom = Literal["auto", "self", "labels", "extractive", "statistical"]
RulesName = Literal["own", "paper"]
Rollouts = Literal["transformers", "vllm-colocate"]


class SftSettings(SettingsTable):
    """Supervised fine-tuning: the paper's phase 1, algorithm 1."""

    items_from: ItemsFrom = Field(
        "auto",
        description=(
            "What writes the first item keywords: self (the model, as in the paper); labels (pairs "
            "of words that relevant items share), extractive or statistical for a model that can't "
            "write any; auto is labels for tiny, else self"
        ),
    )
    item_keywords: int = Field(10, ge=1, description="M: keywords of an item (paper, section 4.3)")
    query_keywords: int = Field(
        15, ge=1, description="N: most frequent keywords of a query's relevant items (section 4.3)"
    )
    epochs: float = Field(2.0, gt=0, description="Passes over the items, and over the queries")
    learning_rate: float = Field(
        1e-5, gt=0, description="Peak learning rate; linear decay after a tenth of warm-up"
    )
    batch_size: int = Field(
        32, ge=1, description="Examples in an optimizer step, over all processes"
    )


class GrpoSettings(SettingsTable):
    """GRPO of one side: the paper's phase 2."""

    learning_rate: float = Field(1e-6, gt=0, description="Constant learning rate (verl: optim.lr)")
    epochs: float = Field(1.0, gt=0, description="Passes over the side's entities a round")
    max_steps: int | None = Field(
        None, ge=1, description="Most steps in a round, instead of epochs"
    )
    prompts_per_step: int = Field(
        256, ge=1, description="Items in an optimizer step (verl: train_batch_size)"
    )
    reward: str = Field(description="module:function of the reward; see docs/training.md")


class QueryGrpoSettings(GrpoSettings):
    """GRPO of the query side, against the frozen item snapshot."""

    epochs: float = Field(
        10.0, gt=0, description="Passes over the training queries in a round (section 4.3)"
    )
    prompts_per_step: int = Field(
        512, ge=1, description="Queries in an optimizer step (verl: train_batch_size)"
    )
    reward: str = Field(
        "cogr.rewards:query_reward", description="module:function of the reward (eq. 2)"
    )


class ItemGrpoSettings(GrpoSettings):
    """GRPO of the item side, against the frozen query snapshot."""

    epochs: float = Field(5.0, gt=0, description="Passes over the items in a round (section 4.3)")
    reward: str = Field(
        "cogr.rewards:item_reward", description="module:function of the reward (eq. 3)"
    )


class LoraSettings(SettingsTable):
    """Low-rank adapters instead of all weights, saved beside the name of their base.

    The learning rates of sft, query and item are for full weights; adapters take ten times them.
    """

    rank: int = Field(0, ge=0, description="Rank; 0 trains all weights, as the paper does")


class RolloutSettings(SettingsTable):
    """How completions are drawn during GRPO: at temperature 1 (paper, table of decoding), without
    top-p or top-k, which would bias the importance ratio.
    """

    by: Rollouts = Field(
        "transformers",
        description="transformers, or vllm-colocate: vLLM in the training's process",
    )
    generations: int = Field(8, ge=2, description="Completions per prompt (verl: rollout.n)")
    max_tokens: int = Field(512, ge=1, description="Longest completion (verl: max_response_length)")


class TrainingSettings(SettingsTable):
    """The training loop: SFT, then rounds of GRPO on both sides in turn."""

    model: str = Field(
        "tiny",
        description="Start of both sides: a model folder, a Hugging Face name or tiny",
    )
    seed: int = Field(0, ge=0, description="Seed of first weights, data order and rollouts")
    accelerate: str | None = Field(
        None,
        description="Configuration file of accelerate, such as examples/accelerate-fsdp2.yaml",
    )
    processes: int = Field(
        1, ge=1, description="Processes of one training stage, one GPU each, by accelerate"
    )
    save_steps: int = Field(
        50, ge=0, description="Steps of a stage between checkpoints, to resume from; 0: none"
    )
    rules: RulesName = Field(
        "own",
        description=(
            "own: only new item sets that don't lower training F1 are taken, a stage ends when its "
            "reward has stopped rising, a round that lowers dev F1 is not built upon; paper: none "
            "of this. See docs/training.md"
        ),
    )
    invented_queries: int = Field(
        0,
        ge=0,
        description="Made-up queries of two known words for SFT, for few labels; not in the paper",
    )
    sft: SftSettings = Field(default_factory=SftSettings)
    query: QueryGrpoSettings = Field(default_factory=QueryGrpoSettings)
    item: ItemGrpoSettings = Field(default_factory=ItemGrpoSettings)
    rollouts: RolloutSettings = Field(default_factory=RolloutSettings)
    lora: LoraSettings = Field(default_factory=LoraSettings)

    _is_path = field_validator("accelerate")(usable_path)

    @property
    def index_by(self) -> Literal["transformers", "vllm"]:
        """The generator of the index builds: the engine that draws the rollouts."""
        return "transformers" if self.rollouts.by == "transformers" else "vllm"
