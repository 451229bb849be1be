"""Texts that break JSON, mustache or the eye, for tests of everything that puts a text into a
request.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

WORDS = r"""
" \ {{ }} {{.}} {{#toJson}}params{{/toJson}} {{{x}}} {{&x}} {{>x}} "}},{"match_all":{}} "}}]}}
\u0022 ' <script> &quot; &#34; %22 * / AND sofa null true 沙发
"""
CHARACTERS = "\n\r\x00\x1f\x7f\u2028\u2029\u202e\u200f\u061c\ufeff{}[]:,é😀\U0010ffff"
PIECES = (*WORDS.split(), *CHARACTERS, "{{=<% %>=}}", "a" * 300)


def hostile(seed: int, count: int) -> Iterator[str]:
    """Texts of pieces that break JSON, mustache or the eye; one in fifty has ten thousand
    characters.
    """
    draw = random.Random(seed)
    for number in range(count):
        text = "".join(draw.choice(PIECES) for _ in range(draw.randint(1, 12)))
        yield (text * 10_000)[:10_000] if number % 50 == 0 else text
