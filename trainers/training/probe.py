"""F1 inside a training phase (`training.evaluate_steps`): every so many steps the model in training
writes the keywords of a whole side, and these are measured against the frozen other side.

Only the figures are kept, and training is not affected: a copy of the model writes, and the random
number generators are restored.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cogr.evaluation import retrieved_ids, rows_of_queries, set_figures
from cogr.matching.mirror import Mirror
from cogr.records import SPLITS, Entity, Side, Split
from indexers.generators import Completion, Request, make_generator
from indexers.workspace import generator_options
from trainers.training.building import keywords_of, own_keyword, prompts_of
from trainers.training.devices import ranks
from trainers.training.inputs import Inputs

_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Probe:
    """Measures one side while it trains.

    Attributes:
        base: the model folder that the stage started from; adapters are read with it.
        file: figures go there, a line of JSON each: step, and F1 of dev and test.
    """

    inputs: Inputs
    side: Side
    base: Path
    file: Path

    @classmethod
    def of(cls, inputs: Inputs, side: Side, base: Path) -> Probe | None:
        """None where nothing is measured inside a phase."""
        if not inputs.settings.evaluate_steps:
            return None
        return cls(inputs, side, base, inputs.log(side).with_suffix(".f1.jsonl"))

    def begins(self, step: int) -> None:
        """The stage begins, or resumes after a step: figures of later steps are removed."""
        if ranks.is_first():
            kept = [line for line in self._lines() if line["step"] <= step]
            self.file.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")

    def _lines(self) -> list[dict[str, Any]]:
        text = self.file.read_text("utf-8") if self.file.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def measure(self, trainer: Any, step: int) -> None:
        """Measure the keywords that the model writes after a step. The first process does; the
        others poll the file, since collective operations have a time limit.
        """
        with tempfile.TemporaryDirectory(dir=self.inputs.run.folder("trainer")) as folder:
            if ranks.is_first() or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
                trainer.save_model(folder)
            if ranks.is_first():
                line = {"step": step, **self._f1(Path(folder))}
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                said = ", ".join(f"{split} F1 {line[split]:.4f}" for split in self._splits)
                self.inputs.say(f"  {self.side} side, step {step}: {said}")
        while not any(line["step"] == step for line in self._lines()):
            time.sleep(_LOOK_SECONDS)

    @property
    def _splits(self) -> list[Split]:
        queries = self.inputs.workspace.dataset.queries
        return [split for split in SPLITS if split != "train" and queries.get(split)]

    def _f1(self, folder: Path) -> dict[str, float]:
        """Split -> F1 of the keywords that a saved model writes."""
        inputs, dataset = self.inputs, self.inputs.workspace.dataset
        asked = [query for split in self._splits for query in dataset.queries[split]]
        entities: Sequence[Entity] = dataset.items if self.side == "item" else asked
        written = self._written(folder, entities)
        if self.side == "query":
            items = inputs.mirror(inputs.before.items)
            words = {query.id: [*written[query.id], own_keyword(query)] for query in asked}
        else:
            own = [own_keyword(item) for item in dataset.items]
            ids = [item.id for item in dataset.items]
            items = Mirror.from_sets(ids, [written[id_] for id_ in ids], own)
            rows = rows_of_queries(asked, inputs.snapshot(inputs.round.queries))
            words = {id_: list(row.weighted) for id_, row in rows.items()}
        found = retrieved_ids(items, words)
        return {
            split: round(set_figures(dataset, dataset.queries[split], found).means["f1"], 6)
            for split in self._splits
        }

    def _written(self, folder: Path, entities: Sequence[Entity]) -> Mapping[str, Sequence[str]]:
        """Entity id -> the keywords that an index build would write for it."""
        import torch

        inputs, workspace = self.inputs, self.inputs.workspace
        k_max, own = workspace.settings.keywords.k_max, workspace.settings.generator.of(self.side)
        adapter = folder if (folder / "adapter_config.json").is_file() else None
        model = {"name": "transformers", "model": str(self.base if adapter else folder)}
        chosen = own.model_copy(update=model)
        constrained = own.constrained and self.side == "query"
        vocabulary = inputs.before.items if constrained else None
        prompts = prompts_of(workspace, self.side, entities)
        requests = [Request(e.id, e, p) for e, p in zip(entities, prompts, strict=True)]
        texts = {entity.id: own_keyword(entity) for entity in entities}
        found: dict[str, Sequence[str]] = dict.fromkeys(texts, ())
        options = generator_options(chosen, vocabulary, k_max) | {"adapter": adapter}
        with (
            torch.random.fork_rng(),
            make_generator(options, self.side, workspace.dataset, workspace.store) as writer,
        ):
            for answer in writer.generate(requests):
                if isinstance(answer, Completion):
                    found[answer.id] = keywords_of(answer.text, texts[answer.id])[:k_max]
        return found


def as_callback(probe: Probe, trainer: Any) -> Any:
    """A trainer's callback that measures every so many steps; not after the last step, whose pair
    the round evaluates.
    """
    from transformers import TrainerCallback

    every = probe.inputs.settings.evaluate_steps

    class Callback(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, _a: Any, state: Any, _c: Any, **_: Any) -> None:
            probe.begins(state.global_step)

        def on_step_end(self, _a: Any, state: Any, _c: Any, **_: Any) -> None:
            if state.global_step % every == 0 and state.global_step < state.max_steps:
                probe.measure(trainer, state.global_step)

    return Callback()
