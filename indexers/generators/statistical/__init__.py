"""The generator `statistical`: keywords without a language model, learned from relevance labels.

A ranker gives every item a probability of being relevant to a query (`ranking`). Items get keywords
(`item_keywords`). A query gets the keywords that retrieve its probable items (`keyword_selection`).
Weights and ordering keywords rank the retrieved items (`keyword_weights`), and a confidence says
how good the set is. `fitting` makes the `artefact` and calibrates it, `storage` keeps it, and
`generator` answers from it. `stacking` adds earlier snapshot pairs as evidence.

Importing this package imports neither LightGBM nor scipy; its submodules do.
"""

MANIFEST = "manifest.json"
"""The file of a saved fit that is written last."""

FOLDS = 5
"""Parts of the training queries; each is predicted by a ranker that has not seen it."""

MIN_QUERIES = 2 * FOLDS
"""Fewest training queries with relevant items that a fit needs."""

READABILITY = 0.01
"""The expected F1 that an unreadable keyword must add, see `item_keywords.ItemKeywords.costs`."""

FEW_QUERIES = 300
"""With fewer training queries the ranker is simpler and looks at more candidates."""
