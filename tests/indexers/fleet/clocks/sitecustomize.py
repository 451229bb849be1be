"""The wall clock of a process whose machine is set right, or wrong, while it runs.

Monotonic clocks go on, as they do there.
"""

from __future__ import annotations

import os
import time

_real, _began = time.time, time.monotonic()
_seconds, _after = float(os.environ["CLOCK_JUMPS"]), float(os.environ["CLOCK_JUMPS_AFTER"])


def _time() -> float:
    return _real() + (_seconds if time.monotonic() - _began > _after else 0.0)


time.time = _time
