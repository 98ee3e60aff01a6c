"""Reports of progress while text is read."""

from __future__ import annotations

import time
from collections.abc import Callable

REPORT_SECONDS = 60  # between two lines of progress

Report = Callable[[str], None]


class Pace:
    """Reports at most once per minute how much is done, and how much per second.

    Args:
      report: called with the line.
      line: with `{done}` and `{rate}`, such as `"encoded {done} pairs, {rate} per second"`.
      before: what was done before, which does not count in the rate.
    """

    def __init__(self, report: Report, line: str, before: int = 0):
        self._report, self._line, self._before = report, line, before
        self._started = self._reported = time.monotonic()

    def at(self, done: int) -> None:
        """Reports that `done` items are done, those before included, if a minute has passed."""
        now = time.monotonic()
        if now - self._reported > REPORT_SECONDS:
            self._reported = now
            rate = (done - self._before) / (now - self._started)
            self._report(self._line.format(done=f"{done:,}", rate=f"{rate:,.0f}"))
