"""The demo's folder: the sample shop and the configuration of everything that the demo does with
it.

The folder is an ordinary workspace: every command works on it with `-c .demo/cogr.toml`. What is
done there is `run`'s business.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from cogr.errors import SettingsError, UserError
from cogr.settings import Settings, load_settings
from cogr.store import storage_errors
from trainers.demo import CATALOGUE
from trainers.demo.sample import SAMPLE_SETTINGS

MARK = "# Written by cogr-train demo."
_HEAD = f"{MARK} Your own shop: copy this file and point dataset.path at your folder.\n"
_OWN = {
    "store": '"store"',
    "dataset.loader": '"jsonl"',
    "dataset.path": '"shop"',
    "opensearch.prefix": '"cogr-demo"',
    # A model of this size leaves some items without keywords; their titles still find them.
    "rebuild.max_failure_share": "0.25",
}


@dataclass(frozen=True)
class Folder:
    """A folder that is laid out.

    Attributes:
        config: its configuration file.
        values: dotted key -> value as TOML has it: what the file says.
    """

    config: Path
    values: Mapping[str, str]

    @property
    def path(self) -> Path:
        return self.config.parent

    def overrides(self, url: str | None = None) -> list[str]:
        """The file's values as `--set` has them, so that the environment of another project changes
        nothing.

        Args:
            url: of the OpenSearch that was started for the demo.
        """
        here = self.config.resolve().parent
        own = {
            "dataset.path": json.dumps(str(here / "shop")),
            "store": json.dumps(str(here / "store")),
        }
        if url is not None:
            own["opensearch.url"] = json.dumps(url)
        return [f"{key}={value}" for key, value in {**self.values, **own}.items()]

    def settings(self, url: str | None = None) -> Settings:
        """The demo's settings. Raises SettingsError for a `--set` value that is none."""
        return load_settings(self.config, self.overrides(url))


def lay_out(out: Path, backend: str, more: Sequence[str] = ()) -> Folder:
    """Put the shop and its configuration into the demo's folder.

    Args:
        out: the folder.
        backend: memory or opensearch.
        more: `key=value` settings over the sample's own.

    Raises:
        UserError: the folder has a configuration that the demo did not write.
        SettingsError: one of `more` has no value.
        StorageError: it can't be written.
    """
    config = out / "cogr.toml"
    sample = {key: json.dumps(value, ensure_ascii=False) for key, value in SAMPLE_SETTINGS.items()}
    values = {**_OWN, "backend": json.dumps(backend), **sample, **dict(map(_value, more))}
    with storage_errors(str(out)):
        if config.exists() and not config.read_text("utf-8", errors="replace").startswith(MARK):
            raise UserError(
                f"{config} was not written by the demo; name another folder with --out."
            )
        (out / "shop").mkdir(parents=True, exist_ok=True)
        for file in sorted(CATALOGUE.glob("*.jsonl")):
            shutil.copyfile(file, out / "shop" / file.name)
        config.write_text(_HEAD + as_toml(values), "utf-8")
    return Folder(config, values)


def _value(override: str) -> tuple[str, str]:
    """One `--set` value as TOML has it: as it is where it parses, else as a string."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise SettingsError(
            f"--set {override!r} is not of the form key=value, such as training.query.max_steps=5."
        )
    try:
        tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        text = json.dumps(text, ensure_ascii=False)
    return key.strip(), text.strip()


def as_toml(values: Mapping[str, str]) -> str:
    """Dotted keys as a TOML file: plain keys, then a table for each first part."""
    tables = sorted(
        (key.partition(".") for key in values if "." in key), key=lambda parts: parts[0]
    )
    lines = [f"{key} = {value}" for key, value in values.items() if "." not in key]
    for name, inner in groupby(tables, key=lambda parts: parts[0]):
        lines += ["", f"[{name}]", *(f"{key} = {values[f'{name}.{key}']}" for _, _, key in inner)]
    return "\n".join(lines) + "\n"
