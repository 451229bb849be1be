"""Relevance labels without human judgements: from shoppers' clicks, and from a language model.

`events` reads logs, `from_clicks` estimates relevance from them and writes it as files; `judge`
asks a language model about pooled pairs, and measures its agreement with people. Grades are the
paper's five levels, bad (0) to excellent (4); an item is relevant from acceptable (2) on.
"""

LEVELS = ("bad", "poor", "acceptable", "good", "excellent")
"""The paper's five levels, by grade (appendix on relevance labels)."""

RELEVANT = 2.0
"""The lowest grade of a relevant item: acceptable."""
