"""The schema of the chart's values: written by charts/schema.py, closed at every level, the
settings by their own names.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from cogr.settings import known_keys
from tests.charts.conftest import CHART
from tests.documents import ROOT

SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))


def test_it_is_what_values_and_settings_say() -> None:
    made = runpy.run_path(str(ROOT / "charts/schema.py"))["schema"]()
    assert made == SCHEMA, "run make docs"


def test_the_readme_has_the_versions_of_the_chart() -> None:
    page = (CHART / "README.md").read_text("utf-8")
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    said = (
        f"![Version: {chart['version']}]",
        f"![AppVersion: {chart['appVersion']}]",
        f"Kubernetes: `{chart['kubeVersion']}`",
    )
    assert [part for part in (*said, chart["description"]) if part not in page] == [], (
        "run make chart-readme"
    )


def leaves(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of a table's settings."""
    for name, value in table["properties"].items():
        reference = value.get("$ref")
        if reference:
            yield from leaves(
                SCHEMA["$defs"][reference.removeprefix("#/$defs/")], f"{prefix}{name}."
            )
        else:
            yield prefix + name


def test_every_setting_is_there_by_its_name_and_no_other() -> None:
    own = set(leaves(SCHEMA["$defs"]["settings.Settings"]))
    secret = set(SCHEMA["$defs"]["secretSettings"]["properties"])
    assert own | secret == set(known_keys())
    assert own & secret == {"redis.url"}
    assert {"opensearch.password", "serving.token"} <= secret


def test_defaults_and_values_files_are_valid() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(defaults)
    missing = set(SCHEMA["properties"]) - set(defaults) - {"global"}
    assert missing == set(), "every value has a default in values.yaml"


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"worker": {"keda": {"enable": True}}}, "enable"),
        ({"settings": {"opensearch": {"urls": "http://x"}}}, "urls"),
        ({"settings": {"opensearch": {"password": "x"}}}, "password"),
        ({"settings": {"store": "relative"}}, "relative"),
        ({"settings": {"generator": {"name": "gpt"}}}, "gpt"),
        ({"secretSettings": {"opensearch.pasword": {"name": "a", "key": "b"}}}, "pasword"),
        ({"secretSettings": {"opensearch.password": "plain"}}, "plain"),
        ({"rebuild": {"item": {"schedule": "every night"}}}, "every night"),
        ({"worker": {"priorityClassName": "high\nhostNetwork: true"}}, "hostNetwork"),
        ({"scratch": {"tmp": "much"}}, "much"),
    ],
)
def test_what_is_wrong_is_refused_and_named(values: dict[str, Any], names: str) -> None:
    errors = list(jsonschema.Draft202012Validator(SCHEMA).iter_errors({"settings": {}, **values}))
    wrong = [error for error in errors if names in error.message]
    assert wrong, [error.message for error in errors]
