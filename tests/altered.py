"""A command with other values of constants, for tests that start processes:
`python -m tests.altered '{"ops.expander.app.READ_SECONDS": 60}' ops.cli serve ...`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any


def alter(constants: Mapping[str, Any]) -> None:
    """Set constants of modules and classes by their dotted names.

    Raises AttributeError for one that there is not.
    """
    for name, value in constants.items():
        owner, _, constant = name.rpartition(".")
        place = resolve_name(owner)
        getattr(place, constant)
        setattr(place, constant, value)


def main() -> None:
    """Run the command of the second argument with the constants of the first."""
    constants, module = sys.argv[1:3]
    alter(json.loads(constants))
    sys.argv = [module, *sys.argv[3:]]
    importlib.import_module(module).main()


if __name__ == "__main__":
    main()
