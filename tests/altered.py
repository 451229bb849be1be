"""A command with other values of constants, for tests that start processes:
`python -m tests.altered '{"ops.expander.app.READ_SECONDS": 60}' ops.cli serve ...`.
"""

from __future__ import annotations

import importlib
import json
import sys
from pkgutil import resolve_name


def main() -> None:
    """Run the command of the second argument with the constants of the first, by dotted names of
    modules and classes. Raises AttributeError for one that there is not.
    """
    constants, module = sys.argv[1:3]
    for name, value in json.loads(constants).items():
        owner, _, constant = name.rpartition(".")
        place = resolve_name(owner)
        getattr(place, constant)
        setattr(place, constant, value)
    sys.argv = [module, *sys.argv[3:]]
    importlib.import_module(module).main()


if __name__ == "__main__":
    main()
