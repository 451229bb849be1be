"""One module a kind of format.

A format turns a snapshot's rows into text, piece by piece, and says what lies beside the file.
"""

from indexers.exchange.formats import engines, lines, synonyms
from indexers.exchange.formats.base import Format

FORMATS: dict[str, Format] = {**lines.FORMATS, **engines.FORMATS, **synonyms.FORMATS}
"""By name, as `cogr-index export --format` takes them; parquet is the snapshot's own file."""

__all__ = ["FORMATS", "Format"]
