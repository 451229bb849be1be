"""What can be refused before anything is loaded: settings that can't train, data without labels,
missing packages.
"""

from __future__ import annotations

import importlib.util

from cogr.errors import MissingExtraError, SettingsError, TrainingError
from cogr.records import SIDES
from cogr.rewards import load_reward
from cogr.settings import Settings
from indexers.workspace import Workspace
from trainers.training.holdout import with_dev
from trainers.training.options import grpo_batch, sft_batch
from trainers.training.work import items_from


def check_settings(workspace: Workspace) -> None:
    """Refuse a configuration that can't train; one sentence each.

    Raises:
        TrainingError: generations, batches, budgets, adapters; a store that is not on a local disk.
        SettingsError: a reward that can't be imported, item keywords from a model that can't write
            any.
        DataError: no training query has a relevant item.
        MissingExtraError: torch, transformers or trl is not installed.
    """
    training, k_max = workspace.settings.training, workspace.settings.keywords.k_max
    for package in (
        "torch",
        "transformers",
        "trl",
        *(("tensorboard",) if training.tensorboard else ()),
    ):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("Training", "train")
    if not workspace.store.is_local:
        raise TrainingError(
            f"A run trains on a local disk, but the store is {workspace.store.url}; set store to "
            "a folder."
        )
    if k_max < training.sft.item_keywords:
        raise TrainingError(
            f"keywords.k_max is {k_max}, below the {training.sft.item_keywords} keywords of "
            "training.sft.item_keywords (M); "
            "raise the one or lower the other."
        )
    items_from(training)
    _check_proposals(workspace.settings)
    _check_adapters(workspace.settings)
    queries = len(with_dev(workspace).dataset.require("train")) + training.invented_queries
    sizes = {"query": queries, "item": len(workspace.dataset.items)}
    for side, settings in (("query", training.query), ("item", training.item)):
        load_reward(settings.reward)
        sft_batch(training.sft, sizes[side], training.processes)
        try:
            grpo_batch(settings, sizes[side], training.rollouts.generations, training.processes)
        except TrainingError as error:
            raise TrainingError(f"training.{side}: {error}") from None


def _check_proposals(settings: Settings) -> None:
    prompts = settings.prompts
    shown = (
        "{search_results}" in prompts.template("query").user
        and prompts.search_from == "statistical"
    )
    if settings.training.sft.queries_from == "proposals" and not shown:
        raise SettingsError(
            'training.sft.queries_from is "proposals", but query prompts show no keywords; set '
            "prompts.query_variant to "
            '"search" (or put {search_results} into prompts.query_user) and prompts.search_from '
            'to "statistical".'
        )


def _check_adapters(settings: Settings) -> None:
    for side in SIDES:
        if (adapter := settings.generator.of(side).adapter) is not None:
            raise TrainingError(
                f"The adapter {adapter} (generator.adapter) is not trained on: merge it into its "
                "base, set training.model "
                "to the merged folder, and take generator.adapter out."
            )
