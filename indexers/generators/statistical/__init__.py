"""The generator `statistical`: keywords without a language model, learned from relevance labels.

A ranker gives every item a probability of being relevant to a query (`ranking`). Items get keywords
(`item_keywords`). A query gets the keywords that retrieve its probable items (`distillation`), a
booster edits them (`edits`), and weights and ordering keywords order what they find, with how sure
that is (`ordering`). `fitting` makes the `artefact`, `storage` keeps it, and `generator` answers
from it.

Importing this package imports neither LightGBM nor scipy; its submodules do.
"""

FOLDS = 5
"""Parts of the training queries; each is predicted by a ranker that has not seen it."""

LEAST_QUERIES = 2 * FOLDS
"""Training queries with relevant items that a fit needs."""

READABILITY = 0.01
"""Expected F1 that a query's keyword must bring which nobody says, unless set otherwise."""

FEW_QUERIES = 300
"""With fewer training queries the ranker is simpler, and candidates are more."""
