"""The sample shop and the demo: `cogr-train demo` sends 400 self-written items through the whole
path, training included.

`demo` has its steps; `CATALOGUE` is the folder of the bundled shop (loader `jsonl`), which
`benchmarks/_shop.py` makes.
"""

from __future__ import annotations

from pathlib import Path

CATALOGUE = Path(__file__).parent / "data"
"""The bundled catalogue: 400 items, 182 queries and their labels."""
