"""The training loop without a model: targets, acceptance, state, run folders, checks, scores."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.errors import DataError, TrainingError, UserError
from cogr.matching.mirror import Mirror
from cogr.records import Query
from cogr.rewards import Reference, World, query_reward
from cogr.settings.training import QueryGrpoSettings, RolloutSettings, RulesName, TrainingSettings
from cogr.snapshots import Row, open_snapshot, read_set_aside, write_set_aside
from cogr.store import as_json
from indexers.generators.model_folders import digest
from indexers.telemetry.prometheus import REGISTRY
from indexers.workspace import Workspace
from tests.shops import (
    COLOURS,
    THINGS,
    colour_shop,
    frozen,
    read_jsonl,
    write_jsonl,
    write_sample_part,
    write_shop,
)
from tests.trainers.report_worlds import Told
from trainers.training.building import Build, accept, accept_items, build_snapshot
from trainers.training.checkpoints import base_folder, save_model
from trainers.training.driver import Driver
from trainers.training.grpo import CompletionScorer
from trainers.training.inputs import Inputs
from trainers.training.rounds import (
    ROUND_STAGES,
    SFT_STAGES,
    Round,
    Run,
    StageRecord,
    State,
    create,
    open_run,
    verdict,
)
from trainers.training.sft import query_targets, read_targets
from trainers.training.stage import InThisProcess, Launcher, one_start_a_round
from trainers.training.trainer_config import check_settings, grpo_step, sft_step
from trainers.word_model import WordModel

WORDS = [f"w{number}" for number in range(8)]


def sets_of(count: int) -> st.SearchStrategy[list[list[str]]]:
    return st.lists(
        st.lists(st.sampled_from(WORDS), max_size=4, unique=True), min_size=count, max_size=count
    )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, dict[str, list[str]]]:
    items = [f"i{number}" for number in range(draw(st.integers(1, 6)))]
    queries = [
        Query(f"q{n}", f"text {n}", draw(st.sampled_from([0.5, 1.0, 3.0])))
        for n in range(draw(st.integers(1, 4)))
    ]
    relevant = {query.id: draw(st.lists(st.sampled_from(items), unique=True)) for query in queries}
    titles = [draw(st.sampled_from(["", *WORDS])) for _ in items]
    mirror = Mirror.from_sets(items, draw(sets_of(len(items))), titles)
    asked = Mirror.from_sets(
        [q.id for q in queries], draw(sets_of(len(queries))), [q.text for q in queries]
    )
    new = dict(zip(items, draw(sets_of(len(items))), strict=True))
    return World.of(mirror, queries, relevant, query_mirror=asked), new


def objective(world: World, sets: Mapping[str, Sequence[str]]) -> float:
    """Sum of F over the queries after moving the items, built anew."""
    old, ids = world.items, list(world.items.ids)
    words = [list(sets[id_] if id_ in sets else old.keywords_of(id_)) for id_ in ids]
    rebuilt = Mirror.from_sets(ids, words, [old.own_keyword(id_) for id_ in ids])
    return Reference(replace(world, items=rebuilt)).objective


@settings(deadline=None, max_examples=30)
@given(worlds())
def test_accepting_item_sets_never_lowers_training_f1(
    made: tuple[World, dict[str, list[str]]],
) -> None:
    world, new = made
    found = accept(world, new)
    after = objective(world, found.accepted)
    assert after >= found.before - 1e-9
    assert after - found.before == pytest.approx(found.realised, abs=1e-9)
    whole = accept(world, new, everything=True)
    assert whole.accepted == new
    assert objective(world, new) - found.before == pytest.approx(whole.realised, abs=1e-9)
    assert all(words == new[id_] for id_, words in found.accepted.items())


def test_acceptance_refuses_what_pays_alone_and_not_together() -> None:
    """Each of two items would bring "blue" its first result, at the price of a wrong one elsewhere;
    only the first does.
    """
    queries = [Query("q1", "x1"), Query("q2", "x2"), Query("q3", "x3", weight=1.2)]
    world = World.of(
        Mirror.from_sets(["a", "b", "x", "y"], [[], [], ["red"], ["green"]]),
        queries,
        {"q1": ["a", "b"], "q2": ["x"], "q3": ["y"]},
        query_mirror=Mirror.from_sets(["q1", "q2", "q3"], [["blue"], ["red"], ["green"]]),
    )
    found = accept(world, {"a": ["blue", "red"], "b": ["blue", "green"]})
    assert found.accepted == {"a": ["blue", "red"]}
    assert found.realised == pytest.approx(2 / 3 - 1 / 3)


def test_items_that_end_without_keywords_are_noted_as_set_aside(tmp_path: Path) -> None:
    titles = {"a": "Sofa", "b": "Lamp", "c": "Desk", "d": "Chair"}
    items = [{"id": id_, "title": title} for id_, title in titles.items()]
    queries = [{"id": "q", "text": "couch", "split": "train"}]
    config = write_shop(tmp_path, items, queries, [{"query": "q", "item": "a", "grade": 1}])
    workspace = Workspace.open(config)

    def written(number: int, **sets: tuple[str, ...]) -> str:
        rows = [Row(id_, titles[id_], words) for id_, words in sets.items()]
        return frozen(workspace.store, "item", rows, number).id

    old = written(0, a=("couch",), b=("light",), c=(), d=())
    new = written(1, a=(), b=(), c=(), d=("couch",))
    asked = frozen(workspace.store, "query", [Row("q", "couch", ())], 1).id
    for snapshot, ids in ((old, "cd"), (new, "abc")):
        write_set_aside(workspace.store, snapshot, dict.fromkeys(ids, "no keywords in the output"))
    base = Round(number=0, stages=(record("index-item", old),))
    now = Round(number=1, stages=(record("index-item", new), record("index-query", asked)))
    accepted = accept_items(Inputs(workspace, create(workspace), now, base, print)).output
    assert read_set_aside(workspace.store, accepted).keys() == {*"bcd"}
    assert open_snapshot(workspace.store, accepted).manifest.set_aside == 3


def test_query_targets_are_the_most_frequent_keywords_and_rarer_ones_first_among_equals() -> None:
    words = {"a": "oak table zinc", "b": "table oak pine", "c": "oak", "d": "zinc"}
    items = {id_: own.split() for id_, own in words.items()}
    assert query_targets(items, {"q": ["a", "b"]}, 3) == {"q": ("table", "oak", "pine")}
    assert query_targets(items, {"q": ["a", "b"]}, 9)["q"] == ("table", "oak", "pine", "zinc")
    assert query_targets(items, {"q": ["nothing"]}, 3) == {}


def record(name: str, output: str = "x", **notes: object) -> StageRecord:
    return StageRecord(name=name, output=output, seconds=1.0, notes=notes)  # type: ignore[arg-type]


@pytest.mark.parametrize("launcher", [Launcher, InThisProcess])
def test_a_stage_is_counted_once_wherever_it_runs(tmp_path: Path, launcher: type[Launcher]) -> None:
    def counted() -> float:
        name, labels = "cogr_stage_duration_seconds_count", {"side": "pair", "stage": "evaluate"}
        return REGISTRY.get_sample_value(name, labels) or 0

    told = Told(tmp_path)
    done, before = told.add(0), counted()
    told.run.save(State(rounds=(Round(number=0, stages=done.stages[:-1]),)))
    Driver(told.workspace, told.run, launcher(told.config, ()), print).reach(0)
    assert told.run.state().rounds_done == 0
    assert counted() - before == 1


def test_a_state_goes_through_the_stages_and_starts_over_from_the_last_accepted_round() -> None:
    state = State()
    for plan in (SFT_STAGES, ROUND_STAGES):
        state = state.begun()
        while (current := state.unfinished) is not None:
            last = current.next_stage == plan[-1]
            stage = record(str(current.next_stage))
            state = state.with_stage(stage, "accepted" if last else None)
        assert [stage.name for stage in state.rounds[-1].stages] == list(plan)
    assert (state.base.number, state.rounds_done) == (1, 1)
    third = Round(number=2, stages=state.rounds[1].stages, verdict="rejected")
    rejected = State(rounds=(*state.rounds, third))
    assert rejected.base == state.base
    assert rejected.begun().unfinished == Round(number=3)


Shop = Callable[..., Workspace]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A part of the sample shop, opened with the given settings."""
    config = write_sample_part(tmp_path, items=24)
    return lambda *overrides: Workspace.open(config, overrides)


def test_a_run_refuses_other_settings_and_data_and_names_them(shop: Shop, tmp_path: Path) -> None:
    create(shop(), "main")
    create(shop("training.save_steps=8"), "main")
    said = r"training\.query\.learning_rate was 0\.0001 and is 0\.5.*--run NAME"
    with pytest.raises(TrainingError, match=said):
        create(shop("training.query.learning_rate=0.5"), "main")
    with pytest.raises(TrainingError, match=r"k_max .*10 .*12"):
        open_run(shop(), "main").check(shop("keywords.k_max=12"))
    labels = tmp_path / "data/labels.jsonl"
    write_jsonl(labels, read_jsonl(labels)[:-1])
    with pytest.raises(TrainingError, match="begun with other settings: dataset_hash was "):
        create(shop(), "main")


def test_runs_that_are_not_there_or_can_t_be_named_so(shop: Shop) -> None:
    workspace = shop()
    with pytest.raises(TrainingError, match="main .*cogr-train run"):
        open_run(workspace, "main")
    with pytest.raises(TrainingError, match="run name"):
        create(workspace, "../other")


FIGURES = StageRecord(name="evaluate", output="", seconds=1.5, notes={"dev": {"f1": 0.25}})


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.replace(b"0.25", b"0.75"),
        lambda content: content[:-40],
        lambda content: b'{"rounds": []}',
    ],
)
def test_a_state_that_is_damaged_is_not_gone_on_from(
    shop: Shop, damage: Callable[[bytes], bytes]
) -> None:
    run = create(shop(), "main")
    state = State().begun().with_stage(FIGURES)
    run.save(state)
    assert run.state() == state
    path = f"{run.path}/state.json"
    run.store.write(path, damage(run.store.read(path)))
    with pytest.raises(TrainingError, match=r"main .*state\.json"):
        run.state()
    run.save(state)
    other = create(shop(), "other")
    other.store.write(f"{other.path}/state.json", run.store.read(path))
    with pytest.raises(TrainingError, match="other .* broken"):
        other.state()


def write_model(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(bytes(range(200)))


def saved_adapter(run: Run, base: str) -> str:
    """An adapter of a model, as stages save it."""

    def write(folder: Path) -> None:
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        (folder / "adapter_model.safetensors").write_bytes(bytes(range(100)))

    return save_model(run, "r000-query", write)


def test_targets_that_were_changed_are_not_trained_on(shop: Shop) -> None:
    run = create(shop(), "main")
    written = as_json({"q1": ["sofa", "couch"]})
    run.store.write(f"{run.path}/sft/query.json", written)
    notes = {"query_targets": hashlib.sha256(written).hexdigest()[:16]}
    made = StageRecord(name="targets", output="", seconds=1, notes=notes)
    assert read_targets(run, made, "query") == {"q1": ["sofa", "couch"]}
    for damaged in (written.replace(b"sofa", b"sofo"), written[:-9], b""):
        run.store.write(f"{run.path}/sft/query.json", damaged)
        with pytest.raises(TrainingError, match=r"sft/query\.json"):
            read_targets(run, made, "query")


@pytest.mark.torch
def test_a_base_from_outside_stays_the_one_that_the_run_began_with(
    shop: Shop, tmp_path: Path
) -> None:
    run, base = create(shop(), "main"), tmp_path / "hub-model"
    write_model(base)
    saved = saved_adapter(run, str(base))
    made = StageRecord(name="targets", output=str(base), seconds=1, notes={"base": digest(base)})
    run.save(State().begun().with_stage(made))
    assert {base_folder(run, one).name for one in (saved, str(base))} == {
        Path(saved).name,
        base.name,
    }
    (base / "model.safetensors").write_bytes(bytes(range(199, -1, -1)))
    for output in (saved, str(base)):
        with pytest.raises(TrainingError, match="hub-model"):
            base_folder(run, output)


def flip(model: Path, adapter: Path) -> None:
    weights = next(model.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")


def swap(model: Path, adapter: Path) -> None:
    beside = model.with_name("aside")
    model.rename(beside)
    adapter.rename(model)
    beside.rename(adapter)


def more(model: Path, adapter: Path) -> None:
    (model / "generation_config.json").write_text("{}")


def lose(model: Path, adapter: Path) -> None:
    next(model.glob("*.safetensors")).unlink()


@pytest.mark.torch
@pytest.mark.parametrize("damage", [flip, swap, more, lose])
def test_a_model_whose_content_is_not_that_of_its_name_is_refused(
    shop: Shop, damage: Callable[[Path, Path], None]
) -> None:
    workspace = shop()
    run = create(workspace, "main")
    base = save_model(run, "r000-item", write_model)
    outputs = base, saved_adapter(run, f"../{Path(base).name}")
    folders = [run.store.local(output) for output in outputs]
    assert [base_folder(run, output) for output in outputs] == folders
    damage(*folders)
    for output in outputs:
        with pytest.raises(TrainingError, match="--run NAME"):
            base_folder(run, output)
        build = Build("item", 1, output, "transformers")
        with pytest.raises(TrainingError, match="saved"):
            build_snapshot(workspace, build)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("training.sft.items_from=self", 'items_from is "self"'),
        ("keywords.k_max=2", r"k_max is 2, below the 3 keywords"),
        ("training.query.reward=nowhere:reward", "'nowhere:reward' can't be imported"),
        ("store=memory://runs", "must lie on a local disk, but the store is mem"),
    ],
)
def test_settings_that_cannot_train_are_refused(shop: Shop, override: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_settings(shop(override))


def test_a_step_is_shared_out() -> None:
    def of(processes: int, entities: int, prompts: int = 512, drawn: int = 8) -> int:
        rollouts = RolloutSettings(generations=drawn)
        settings = TrainingSettings(processes=processes, rollouts=rollouts)
        return grpo_step(QueryGrpoSettings(prompts_per_step=prompts), entities, settings)

    assert of(8, 13_500) == 512
    # WANDS has 430 training queries, fewer than the paper's batch.
    assert of(8, 430) == 430
    # Of fewer queries than that, a step takes as many as can be shared.
    assert of(3, 430) == 429 * 8 // 3
    with pytest.raises(TrainingError, match="multiple of 3"):
        of(3, 100, prompts=5)
    with pytest.raises(TrainingError, match="16 completions.* 3 proc"):
        of(3, 2)
    for processes, examples, share in ((1, 100, 32), (2, 100, 16), (8, 5, 1)):
        assert sft_step(TrainingSettings(processes=processes), examples) == share
    with pytest.raises(TrainingError, match="3 processes"):
        sft_step(TrainingSettings(processes=3), 100)


def scored(
    completions: Sequence[Any],
    ids: Sequence[list[int]],
    reward: Callable[..., float] = query_reward,
    *,
    strict: bool = True,
) -> tuple[list[float], dict[str, float]]:
    """Rewards of completions for one query, and the metrics that were logged."""
    items = Mirror.from_sets(["a", "b"], [["oak"], ["pine"]])
    world = World.of(items, [Query("q", "text")], {"q": ["a"]}, k_max=2)
    score = CompletionScorer(
        world, reward, {"q": "text"}, ends=[0], unfinished_is_over_budget=strict
    )
    logged: dict[str, float] = {}
    found = score(completions, ids, ["q"] * len(ids), logged.__setitem__, log_extra=lambda *_: None)
    return found, logged


def test_the_scorer_gives_the_reward_of_the_parsed_keywords() -> None:
    texts = ["Oak, text", "oak, pine", "oak, pine, elm", "oak"]
    rewards, logged = scored(texts, [[5, 0], [5, 0], [5, 0], [5, 5]])
    assert rewards == [1.0, pytest.approx(2 / 3), 0.0, 0.0]
    assert logged == {"over_budget": 0.25, "unfinished": 0.25, "empty": 0.0, "keywords": 7 / 4}
    messages = [[{"role": "assistant", "content": "oak"}]] * 2
    assert scored(messages, [[5], [5]], strict=False)[0] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "it returned nan, which is not a finite number"),
        (None, "it returned None"),
        (ValueError("no margin known."), r"ValueError: no margin known\.$"),
        (DataError("No such item."), r"No such item\.$"),
    ],
)
def test_a_reward_that_fails_is_never_a_number(value: Any, said: str) -> None:
    def broken(world: World, id_: str, keywords: Sequence[str]) -> float:
        if isinstance(value, Exception):
            raise value
        return value  # type: ignore[no-any-return]

    with pytest.raises(TrainingError, match=f"'oak, elm': {said}"):
        scored(["oak, elm"], [[5, 0]], broken)


def judged(rules: RulesName, before: float | None, now: float | None) -> tuple[str, str]:
    notes = [{} if value is None else {"dev": {"f1": value}} for value in (before, now)]
    base = Round(number=0, stages=(record("evaluate", "", **notes[0]),))
    return verdict(rules, 0.01, base, record("evaluate", "", **notes[1]))


def test_a_round_that_loses_more_dev_f1_than_the_tolerance_is_rejected() -> None:
    assert judged("own", 0.5, 0.495)[0] == "accepted"
    assert judged("own", 0.5, 0.48) == (
        "rejected",
        "dev F1 0.5000 -> 0.4800, which loses more than the tolerance of 0.01",
    )
    assert judged("paper", 0.5, 0.1)[0] == "accepted"
    assert judged("own", None, None) == ("accepted", "no dev split to judge by")


def test_one_start_does_a_round_where_nothing_needs_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.training.trainer_config.GPU_DEVICES", ())
    assert one_start_a_round(TrainingSettings())
    assert one_start_a_round(TrainingSettings(processes=2))
    assert not one_start_a_round(TrainingSettings(rollouts=RolloutSettings(by="vllm-colocate")))
    monkeypatch.setattr("trainers.training.trainer_config.GPU_DEVICES", (tmp_path,))
    assert not one_start_a_round(TrainingSettings())


# What labels say about words, and what is invented from it


def test_words_that_relevant_items_share_matter_and_are_translated() -> None:
    model = WordModel(colour_shop())
    assert set(model.weights) == {*COLOURS.values(), *THINGS.values()}
    (pair,) = model.keywords("red-car-0", 5)
    assert sorted(pair.split()) == ["crimson", "vehicle"]
    best = {
        word: max(row, key=lambda to, row=row: row[to]) for word, row in model.translations.items()
    }  # type: ignore[misc]
    assert best == COLOURS | THINGS


def test_a_combination_that_nobody_asked_for_is_invented_with_its_items() -> None:
    model = WordModel(colour_shop())
    assert model.items_of(["green", "unknown"]) == frozenset()
    ((query, items),) = model.invent(50, seed=1).items()
    assert {*query.text.split()} == {"green", "cup"}
    assert items == model.items_of(["green", "cup"]) == {f"green-cup-{n}" for n in range(4)}


def test_inventing_ends_with_the_last_query_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model, drawn = WordModel(colour_shop()), list[set[str]]()
    real = model.items_of
    monkeypatch.setattr(model, "items_of", lambda words: drawn.append({*words}) or real(words))
    (query,) = model.invent(1, seed=1)
    assert drawn[-1] == {*query.text.split()}
