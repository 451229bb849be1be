"""Writes cogr/README.md from values.yaml, in the layout of helm-docs: the comment `# -- ...` above a value is its description.

Run by `make docs`. Comments without the dashes are for who reads values.yaml and stay there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent / "cogr"
TARGET = HERE / "README.md"
TYPES = {"str": "string", "bool": "bool", "int": "int", "float": "float", "list": "list", "dict": "object"}
HEAD = """# cogr

![Version: {version}](https://img.shields.io/badge/Version-{version}-informational) ![AppVersion: {app}](https://img.shields.io/badge/AppVersion-{app}-informational)

{description}

Installing, upgrading, what is tested and what is not: [docs/kubernetes.md](../../docs/kubernetes.md).

```sh
helm install shop charts/cogr --namespace search --create-namespace --values charts/cogr/values-small.yaml
```

`settings` is the toolkit's own configuration, every key of [docs/settings.md](../../docs/settings.md) by its name; the table has those that the chart sets.

## Requirements

Kubernetes: `{kube}`. KEDA for `worker.keda`, Prometheus' operator for `monitoring`, the Gateway API for `expander.route`.

## Values

| Key | Type | Default | Description |
|-----|------|---------|-------------|
"""


def page() -> str:
    """The whole README."""
    chart = yaml.safe_load((HERE / "Chart.yaml").read_text("utf-8"))
    text = (HERE / "values.yaml").read_text("utf-8")
    head = HEAD.format(
        version=chart["version"], app=chart["appVersion"], description=chart["description"], kube=chart["kubeVersion"]
    )
    root = yaml.compose(text, yaml.SafeLoader)
    values = yaml.safe_load(text)
    return head + "".join(sorted(_rows(root, values, text.splitlines(), ())))


def _rows(node: Any, values: Any, lines: list[str], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in node.value:
        name, own = (*path, key.value), values[key.value]
        description = _comment(lines, key.start_mark.line) if key.start_mark.column == _indent(lines, key) else ""
        if isinstance(own, dict) and own and not description:
            yield from _rows(value, own, lines, name)
        else:
            kind, default = TYPES[type(own).__name__], json.dumps(own)
            yield f"| {'.'.join(name)} | {kind} | `{default}` | {description} |\n"
            if isinstance(own, dict) and own:
                yield from _rows(value, own, lines, name)


def _indent(lines: list[str], key: Any) -> int:
    line = lines[key.start_mark.line]
    return len(line) - len(line.lstrip())


def _comment(lines: list[str], number: int) -> str:
    """The description above a line: from `# -- ` to the line."""
    found: list[str] = []
    for line in reversed(lines[:number]):
        text = line.strip()
        if not text.startswith("#"):
            return ""
        if text.startswith("# -- "):
            return " ".join([text.removeprefix("# -- "), *reversed(found)]).replace("|", "\\|")
        found.append(text.removeprefix("# "))
    return ""


def main() -> None:
    """Write it."""
    TARGET.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
