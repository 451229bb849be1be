"""Settings: order of sources, unknown keys, paths, secrets, and the two-line configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.errors import SettingsError
from cogr.settings import load_settings

TWO_LINES = '[dataset]\nloader = "beir"\npath = "data"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cogr.toml"
    path.write_text(TWO_LINES)
    return path


def test_two_lines_are_enough_and_paths_are_relative_to_the_file(file: Path) -> None:
    settings = load_settings(file)
    assert settings.dataset.path == str(file.parent / "data")
    assert settings.store == str(file.parent / ".cogr")
    assert settings.backend_name == "memory"
    assert settings.generator.name == "auto"


def test_environment_beats_the_file_and_flags_beat_both(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(TWO_LINES + '[opensearch]\nprefix = "file"\n[keywords]\nk_max = 7\n')
    monkeypatch.setenv("COGR_OPENSEARCH__PREFIX", "env")
    assert load_settings(file).opensearch.prefix == "env"
    assert load_settings(file).keywords.k_max == 7
    assert load_settings(file, ["opensearch.prefix=flag"]).opensearch.prefix == "flag"


def test_a_url_means_opensearch(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"opensearch\.url"):
        load_settings(file, ["backend=opensearch"])
    url = "opensearch.url=http://localhost:9200"
    assert load_settings(file, [url]).backend_name == "opensearch"
    assert load_settings(file, [url, "backend=memory"]).backend_name == "memory"
    monkeypatch.setenv("COGR_OPENSEARCH__URL", "http://localhost:9201")
    assert load_settings(file).opensearch.url == "http://localhost:9201"


def test_secrets_are_never_printed(file: Path) -> None:
    settings = load_settings(
        file, ["opensearch.password=hunter2", "generator.openai.api_key=sk-abc"]
    )
    assert settings.opensearch.password.get_secret_value() == "hunter2"
    for text in (repr(settings), str(settings.model_dump()), settings.model_dump_json()):
        assert "hunter2" not in text
        assert "sk-abc" not in text


def test_templates_lie_beside_the_file_or_have_a_name(file: Path) -> None:
    (file.parent / "own.toml").write_text("[item]\nuser = 'Say words for {item}.'")
    own, bare = (
        load_settings(file, [f"prompts.templates={name}"]) for name in ("own.toml", "bare")
    )
    assert bare.prompts.template("query").user == "{query}"
    file.write_text(f'{TWO_LINES}[prompts]\ntemplates = "own.toml"\n')
    assert load_settings(file).prompts.template("item").user == "Say words for {item}."
    with pytest.raises(SettingsError, match="read"):
        own.prompts.template("item")  # a path of a flag is relative to the working directory


def test_times_follow_the_ones_that_are_set(file: Path) -> None:
    usual, patient = (load_settings(file, sets) for sets in ([], ["serving.deadline=3"]))
    assert (usual.serving.cache_timeout, usual.serving.index_timeout) == (0.02, 0.5)
    assert (patient.serving.cache_timeout, patient.serving.index_timeout) == (0.4, 3.0)
