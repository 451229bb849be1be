"""The example of a team's OpenSearch, from beginning to end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cogr.settings.serving import OpenSearchSettings

ROOT = Path(__file__).parents[1]


@pytest.mark.drill
def test_labels_from_clicks_beat_bm25_and_true_labels_beat_them(
    opensearch: OpenSearchSettings, tmp_path: Path
) -> None:
    done = subprocess.run(
        ["sh", str(ROOT / "examples/from-opensearch/run.sh"), str(tmp_path)],
        cwd=ROOT,
        env={
            **os.environ,
            "COGR_OPENSEARCH__URL": str(opensearch.url),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    bm25, clicks, truth = (float(f1) for f1 in re.findall(r" F1 ([\d.]+) ", done.stdout))
    assert bm25 + 0.1 < clicks < truth
