"""How well completions keep to a comma-separated line of keywords, counted while they are parsed;
for reports.

It counts only. What a keyword is, is `cogr.keywords`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cogr.keywords import Parsed, parse_counted
from indexers.generators.protocol import Completion


@dataclass
class ParseStats:
    """Counts over completions; add one by one.

    Attributes:
        completions: completions seen.
        on_one_line: of these, those that are one line of keywords: no second line, no think tag, no
            code fence.
        empty: of these, those without any keyword.
        truncated: of these, those that the length limit ended.
        keywords: distinct keywords, summed over completions.
        repeated: pieces that said an earlier keyword of their completion again.
        overlong: pieces dropped as run-ons.
        broken: pieces dropped for their replacement characters.
        looping: pieces dropped because they say the same words three times in a row.
        tokens: generated tokens.
    """

    completions: int = 0
    on_one_line: int = 0
    empty: int = 0
    truncated: int = 0
    keywords: int = 0
    repeated: int = 0
    overlong: int = 0
    broken: int = 0
    looping: int = 0
    tokens: int = 0

    def add(self, completion: Completion, parsed: Parsed | None = None) -> None:
        """Count one completion. `parsed` saves parsing it again."""
        parsed = parse_counted(completion.text) if parsed is None else parsed
        self.completions += 1
        self.on_one_line += is_one_line(completion.text)
        self.empty += not parsed.keywords
        self.truncated += completion.truncated
        self.keywords += len(parsed.keywords)
        self.repeated += parsed.repeated
        self.overlong += parsed.overlong
        self.broken += parsed.broken
        self.looping += parsed.looping
        self.tokens += completion.tokens

    @property
    def one_line_share(self) -> float:
        """Share of completions that are one comma-separated line; 0.0 without completions."""
        return self.on_one_line / max(1, self.completions)

    @property
    def mean_keywords(self) -> float:
        """Distinct keywords a completion."""
        return self.keywords / max(1, self.completions)

    def as_dict(self) -> dict[str, float]:
        """All counts, the share and the mean, for reports and --json."""
        return {
            **asdict(self),
            "one_line_share": self.one_line_share,
            "mean_keywords": self.mean_keywords,
        }


def is_one_line(completion: str) -> bool:
    """True for a line as the prompt asks for it: nothing after a line break, no think tag, no
    fence.
    """
    text = completion.strip()
    return (
        bool(text) and len(text.splitlines()) == 1 and "<think>" not in text and "```" not in text
    )
