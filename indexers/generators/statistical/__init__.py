"""The generator `statistical`: keywords without a language model, learned from relevance labels.

A ranker gives every item a probability of being relevant to a query (`text_index`, `votes`,
`features`, `ranker`); items get keywords (`item_keywords`);
`indexers.generators.statistical.distillation` spells a query's probabilities as keywords. `fitting`
makes the `artefact`, `storage` keeps it, `generator` answers from it.

Importing this package imports neither LightGBM nor scipy; its submodules do.
"""

from indexers.generators.statistical.generator import Statistical, StatisticalOptions, make

__all__ = ["Statistical", "StatisticalOptions", "make"]
