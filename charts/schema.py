"""Writes cogr/values.schema.json: the chart's own values (values.schema.yaml) and the toolkit's
settings, by their own names.

Run by `make docs`. Settings that are secrets are left out of `settings` and may only be named in
`secretSettings`; redis.url may be in both, since it may have a password.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import yaml

from cogr.settings import Settings

HERE = Path(__file__).parent
TARGET = HERE / "cogr" / "values.schema.json"


def schema() -> dict[str, Any]:
    """The whole schema of the chart's values."""
    whole: dict[str, Any] = yaml.safe_load((HERE / "values.schema.yaml").read_text("utf-8"))
    placed = whole["$defs"].pop("placed")["properties"]
    for component in whole["properties"].values():
        if "$placed" in component.get("properties", {}):
            del component["properties"]["$placed"]
            component["properties"].update(copy.deepcopy(placed))
    _close(whole)
    secrets = sorted([*secret_settings(), "redis.url"])
    whole["$defs"]["secretSettings"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: {"$ref": "#/$defs/secretKey"} for name in secrets},
    }
    whole["$defs"].update(settings_schema())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart cogr",
        **whole,
    }


def settings_schema() -> dict[str, Any]:
    """The tables of cogr.toml as definitions `settings.TABLE`, without secrets and defaults."""
    model = Settings.model_json_schema()
    tables = {**model.pop("$defs"), "Settings": model}
    for table in tables.values():
        _strip(table)
    tables["Settings"]["required"] = ["dataset", "store"]
    # A relative folder would lie in the read-only image.
    tables["Settings"]["properties"]["store"]["pattern"] = (
        r"^(/|[a-z][a-z0-9+.-]*://)[^\x00-\x1f]+$"
    )
    return {f"settings.{name}": table for name, table in tables.items()}


def secret_settings(model: Any = Settings, prefix: str = "") -> list[str]:
    """The dotted names of all settings that are secret."""
    found = []
    for name, field in model.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            found += secret_settings(field.annotation, f"{prefix}{name}.")
        elif "SecretStr" in str(field.annotation):
            found.append(prefix + name)
    return found


def _strip(table: dict[str, Any]) -> None:
    properties = table.get("properties", {})
    for name in [
        name for name, value in properties.items() if '"password"' in json.dumps(value.get("anyOf"))
    ]:
        del properties[name]
    for value in properties.values():
        value.pop("title", None)
        value.pop("default", None)
        # Empty stands for unset, as charts have it; it is left out of cogr.toml.
        _point(value)
    table.pop("title", None)


def _point(value: Any) -> None:
    """Let references point at `settings.TABLE`."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            value["$ref"] = value["$ref"].replace("#/$defs/", "#/$defs/settings.")
        for inner in value.values():
            _point(inner)
    elif isinstance(value, list):
        for inner in value:
            _point(inner)


def _close(value: Any) -> None:
    """Refuse unknown keys wherever an object says nothing about them."""
    if isinstance(value, dict):
        if "properties" in value and isinstance(value["properties"], dict):
            value.setdefault("additionalProperties", False)
        for inner in value.values():
            _close(inner)
    elif isinstance(value, list):
        for inner in value:
            _close(inner)


def main() -> None:
    """Write it."""
    TARGET.write_text(json.dumps(schema(), indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
