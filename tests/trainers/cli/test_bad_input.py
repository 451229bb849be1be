"""What a user can get wrong, provoked for real: one sentence, exit status 2, and nothing of the run
lost.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cogr.errors import TrainingError
from tests.shops import read_jsonl, write_jsonl, write_sample_part
from tests.trainers.conftest import Command, Ended
from tests.trainers.shop import Shop, whole
from trainers.training.checkpoints import check_model, trainable_tokenizer
from trainers.training.driver import Driver
from trainers.training.run_folder import open_run
from trainers.training.stage import Launcher

pytestmark = [pytest.mark.slow, pytest.mark.model]


def bad(ended: Ended, *parts: str, status: int = 2) -> None:
    """It ended with one sentence that holds all the parts."""
    assert ended.status == status, ended.err
    for part in parts:
        assert part in ended.sentence, ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


def content(shop: Shop, run: str = "main") -> dict[str, str]:
    """Every file of a run but its locks, with a hash."""
    folder = open_run(shop.workspace(), run).folder()
    files = sorted(
        file for file in folder.rglob("*") if file.is_file() and file.name != "error.json"
    )
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def other_data(shop: Shop) -> None:
    labels = shop.config.parent / "data" / "labels.jsonl"
    write_jsonl(labels, read_jsonl(labels)[:-1])


def other_version(shop: Shop) -> None:
    file = shop.config.parent / "store/runs/main/run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "normaliser": "cogr-0"}))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (other_data, "was begun on other data"),
        (other_version, "was begun by another version (format 1, normaliser cogr-0"),
    ],
    ids=["data", "version"],
)
def test_a_run_of_something_else(
    copied: Shop, cogr_train: Command, change: Callable[[Shop], None], sentence: str
) -> None:
    change(copied)
    before = content(copied)
    bad(cogr_train("round", "-c", copied.config), sentence)
    assert content(copied) == before


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            "training.rollouts.generations=1",
            "training.rollouts.generations is 1, but GRPO compares",
        ),
        (
            "keywords.k_max=2",
            "keywords.k_max is 2, below the 3 keywords of training.sft.item_keywords (M)",
        ),
    ],
)
def test_settings_that_cannot_train(
    copied: Shop, cogr_train: Command, setting: str, sentence: str
) -> None:
    before = content(copied)
    bad(cogr_train("round", "-c", copied.config, "--set", setting), sentence)
    bad(cogr_train("init", "-c", copied.config, "--run", "new", "--set", setting), sentence)
    assert content(copied) == before


def test_no_training_query_with_a_relevant_item(copied: Shop, cogr_train: Command) -> None:
    data = copied.config.parent / "data"
    queries = read_jsonl(data / "queries.jsonl")
    test = {query["id"] for query in queries if query["split"] == "test"}
    labels = [one for one in read_jsonl(data / "labels.jsonl") if one["query"] in test]
    write_jsonl(data / "labels.jsonl", labels)
    ended = cogr_train("init", "-c", copied.config, "--run", "new")
    bad(
        ended,
        "The train split of the data set jsonl has no queries with a relevant item (train 0, dev "
        "0, test ",
    )


def untrained(shop: Shop, folder: Path) -> Path:
    """A copy of the untrained model of the shop."""
    (base,) = (shop.config.parent / "store/runs/main/models").glob("base-*")
    shutil.copytree(base, folder)
    return folder


def without_padding(model: Path) -> None:
    file = model / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config.pop("pad_token")
    file.write_text(json.dumps(config))


def without_template(model: Path) -> None:
    (model / "chat_template.jinja").unlink(missing_ok=True)
    file = model / "tokenizer_config.json"
    file.write_text(
        json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "chat_template"})
    )


def as_adapter(model: Path) -> None:
    shutil.rmtree(model)
    make_adapter(model, hidden=32)


def make_adapter(folder: Path, hidden: int) -> Path:
    """A LoRA adapter of a Llama of some width."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=600,
        hidden_size=hidden,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = get_peft_model(
        LlamaForCausalLM(config),
        LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    model.peft_config["default"].base_model_name_or_path = "somebody/base"
    model.save_pretrained(folder)
    return folder


def test_models_that_cannot_be_trained(copied: Shop, cogr_train: Command, tmp_path: Path) -> None:
    model = untrained(copied, tmp_path / "model")
    without_padding(model)
    with pytest.raises(TrainingError, match="has no padding token; add pad_token to its tokenizer"):
        trainable_tokenizer(model)
    as_adapter(model)
    asked = ("-c", copied.config, "--run", "new", "--set", f"training.model={model}")
    assert cogr_train("init", *asked, "--set", "training.sft.items_from=labels").status == 0
    bad(
        cogr_train("sft", *asked, "--set", "training.sft.items_from=labels"),
        "is an adapter of somebody/base, not a model; name its base as the model",
    )
    assert open_run(copied.workspace(), "new").state().finished == ()


def test_a_model_without_a_chat_template_is_trained_on_plain_text_with_a_warning(
    copied: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = untrained(copied, tmp_path / "model")
    without_template(model)
    assert not trainable_tokenizer(model).chat_template
    assert "has no chat template" in caplog.text


def test_an_adapter_of_another_base(copied: Shop, tmp_path: Path) -> None:
    model, adapter = (
        untrained(copied, tmp_path / "model"),
        make_adapter(tmp_path / "adapter", hidden=48),
    )
    named = adapter / "adapter_config.json"
    told = json.loads(named.read_text()) | {"base_model_name_or_path": str(model)}
    named.write_text(json.dumps(told))
    command = [
        sys.executable,
        "-m",
        "indexers.cli",
        *["rebuild", "--side", "query", "--generator", "transformers"],
    ]
    chosen = [
        "-c",
        str(copied.config),
        "--set",
        f"generator.model={adapter}",
    ]
    ended = subprocess.run([*command, *chosen], capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert f"The adapter {adapter} was not trained on {model}: its" in ended.stderr.splitlines()[-1]
    assert not (copied.config.parent / "store/cache").exists() or "Traceback" not in ended.stderr


def test_a_checkpoint_that_is_gone_or_changed_is_named(copied: Shop) -> None:
    run = open_run(copied.workspace(), "main")
    path = run.state().rounds[1].model("query")
    (run.store.local(path) / "tokenizer.json").write_text("{}")
    with pytest.raises(
        TrainingError, match=r"is broken: tokenizer\.json does not match its sha256"
    ):
        check_model(run, path)
    run.store.remove(path)
    with pytest.raises(TrainingError, match="is missing or incomplete"):
        check_model(run, path)


# A stage that has all its imports and then this much memory more.
LIMITED = """
import resource, sys
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trainers.training import stage
pages = int(open("/proc/self/statm").read().split()[0])
room = pages * resource.getpagesize() + {room} * 2**20
resource.setrlimit(resource.RLIMIT_AS, (room, room))
sys.exit(stage.main(sys.argv[1:]))
"""


FEW, ENOUGH_FOR_HALF = 600, 1000
"""MiB; see `write_wide_model`.

Too few for half the micro batch: below 800; enough for it and too few for the whole: 900 to 1,100.
"""


@dataclass(frozen=True)
class Cramped(Launcher):
    """Stages have little memory: so many MiB beside their imports."""

    room: int

    def command(self, run: str, stages: int, halvings: int, processes: int) -> list[str]:
        python, _, _, *own = super().command(run, stages, halvings, processes)
        return [python, "-c", LIMITED.format(room=self.room), *own]


def write_wide_model(folder: Path, tokens: Path) -> Path:
    """A narrow model with a vocabulary of 100,000 (and a tokenizer of few): its logits take all the
    memory.
    """
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tokens)
    config = LlamaConfig(
        vocab_size=100_000,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# How much memory a step takes differs a little between machines.
@pytest.mark.drill
def test_out_of_memory_halves_the_micro_batch_once(
    copied: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One allocator arena and one thread, so that address space is memory.
    for name, value in (("MALLOC_ARENA_MAX", "1"), ("OMP_NUM_THREADS", "1")):
        monkeypatch.setenv(name, value)
    model = write_wide_model(tmp_path / "wide", untrained(copied, tmp_path / "tokens"))
    overrides = (
        f"training.model={model}",
        "training.sft={items_from='labels', item_keywords=3, item_epochs=0.1, query_epochs=0.1, "
        "batch_size=2, micro_batch=2}",
        "training.rollouts.generations=16",
        "training.query={max_steps=1, prompts_per_step=8, micro_batch=128, learning_rate=1e-4}",
        "training.item={max_steps=1, prompts_per_step=1, micro_batch=16, learning_rate=1e-4}",
    )
    driver = copied.driver("wide", *overrides)
    driver.sft()
    few = Driver(
        driver.workspace, driver.run, Cramped(copied.config, overrides, FEW), copied.said.append
    )
    with pytest.raises(
        TrainingError, match="train-query ran out of memory, also with half the micro batch; lower"
    ):
        few.round()
    assert len(whole(copied, "wide", *overrides)) == 1
    copied.said.clear()
    half = Driver(
        driver.workspace,
        driver.run,
        Cramped(copied.config, overrides, ENOUGH_FOR_HALF),
        copied.said.append,
    )
    assert half.round().number == 1
    assert copied.said[:2] == [
        "round 1, train-query",
        "train-query ran out of memory: once more with half the micro batch",
    ]
    assert len(whole(copied, "wide", *overrides)) == 2


def test_a_loss_that_is_no_number(copied: Shop, cogr_train: Command) -> None:
    asked = ("-c", copied.config, "--run", "wild", "--set", "training.sft.learning_rate=1e30")
    assert cogr_train("init", *asked).status == 0
    bad(cogr_train("sft", *asked), "the training has diverged; lower the learning rate")
    # The targets stay.
    assert open_run(copied.workspace(), "wild").state().rounds[0].stages[0].name == "targets"


def command(name: str, config: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "trainers.cli", name, "-c", str(config), *more]


@pytest.mark.drill
def test_a_full_disk_during_a_save(tmp_path: Path) -> None:
    """A limit on file sizes, as anyone; a file system of its own that is full, as root."""
    config = write_sample_part(tmp_path, items=40)
    subprocess.run(command("init", config), check=True, capture_output=True)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    small = subprocess.run(
        command("sft", config), capture_output=True, text=True, check=False, preexec_fn=limited
    )
    assert small.returncode == 2, small.stderr
    assert "run the same command again" in small.stderr.splitlines()[-1]
    assert "Traceback" not in small.stderr
    models = tmp_path / "store/runs/main/models"
    assert list(models.iterdir()) == []
    whole_again = subprocess.run(
        command("sft", config, "--json"), capture_output=True, text=True, check=False
    )
    assert whole_again.returncode == 0, whole_again.stderr
    assert "round 0, targets" in whole_again.stderr


@pytest.mark.drill
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_file_system_during_a_save(
    copied: Shop, tmp_path: Path, cogr_train: Command
) -> None:
    store, small = copied.config.parent / "store", tmp_path / "small"
    small.mkdir()
    size = sum(file.stat().st_blocks * 512 for file in store.rglob("*")) + 150_000
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(small)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        subprocess.run(["cp", "-r", f"{store}/.", str(small)], check=True)
        filled = cogr_train("round", "-c", copied.config, "--set", f"store={small}")
        bad(filled, "run the same command again")
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        again = cogr_train("round", "-c", copied.config, "--set", f"store={small}", "--json")
        assert (again.status, again.json["round"]) == (0, 2)
        assert not list(small.rglob(".tmp*"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_two_rounds_on_one_run(copied: Shop, cogr_train: Command) -> None:
    first = subprocess.Popen(command("round", copied.config), stderr=subprocess.PIPE, text=True)
    assert first.stderr is not None
    assert "round 2, train-query" in first.stderr.readline()
    bad(
        cogr_train("round", "-c", copied.config),
        f"cogr-train round is refused: process {first.pid} on",
        "holds the lock run-main",
    )
    first.kill()
    first.wait()
    assert len(whole(copied)) == 2
