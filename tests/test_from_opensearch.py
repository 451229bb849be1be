"""The example of a team's OpenSearch, from beginning to end."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cogr.settings.serving import OpenSearchSettings
from tests.commands import ran
from tests.documents import ROOT


@pytest.mark.drill
def test_labels_from_clicks_beat_bm25_and_true_labels_beat_them(
    opensearch: OpenSearchSettings, tmp_path: Path
) -> None:
    script = ROOT / "examples/from-opensearch/run.sh"
    there = {**os.environ, "COGR_OPENSEARCH__URL": str(opensearch.url)}
    said = ran("sh", script, tmp_path, cwd=ROOT, env=there)
    bm25, clicks, truth = (float(f1) for f1 in re.findall(r" F1 ([\d.]+) ", said))
    assert bm25 + 0.1 < clicks < truth
