"""The ranker of `statistical`: the probability that an item is relevant to a query.

Texts become matrices (`matrices`, `text_index`, `encoder`), training labels become votes
(`training_queries`), a pair of query and item becomes numbers (`features`), and those a probability
(`ranker`). Nothing here knows of keywords.
"""
