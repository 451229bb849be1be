"""A command with other values of constants, for tests that start processes:
`python -m tests.altered '{"ops.expander.door.READ_SECONDS": 60}' ops.cli serve ...`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from typing import Any


def alter(constants: Mapping[str, Any]) -> None:
    """Set constants by their dotted names. Raises AttributeError for one that there is not."""
    for name, value in constants.items():
        module_name, _, constant = name.rpartition(".")
        module = importlib.import_module(module_name)
        getattr(module, constant)
        setattr(module, constant, value)


if __name__ == "__main__":
    alter(json.loads(sys.argv[1]))
    module = sys.argv[2]
    sys.argv = [module, *sys.argv[3:]]
    importlib.import_module(module).main()
