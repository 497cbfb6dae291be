"""The breaker, which finds out whether the server is there, and keeps calls from waiting while it is not."""

from __future__ import annotations

import random
import threading
import time


class Breaker:
    """Opens and closes by probes alone, which are made beside the calls.

    Calls that fail lead to a probe, and do not open it themselves: a rule that throttles holds an answer longer than some
    calls wait, and whoever sends such requests must not get everyone past their limits.
    """

    def __init__(self, failures: int, interval: float) -> None:
        self.open = False
        self._failures, self._interval = failures, interval
        self._lock = threading.Lock()
        self._row = 0  # failures since the last answer
        self._probing = False
        self._next = 0.0  # when to probe again while it is open

    def answered(self) -> None:
        """Notes that a call was answered."""
        self._row = 0

    def failed(self) -> bool:
        """Notes that a call was not answered. If it returns True, probe now."""
        with self._lock:
            self._row += 1
            return self._begin(not self.open and self._row >= self._failures)

    def due(self) -> bool:
        """Reports whether to probe now, while it is open."""
        with self._lock:
            return self._begin(time.monotonic() >= self._next)

    def probed(self, there: bool) -> bool:
        """Notes what a probe has found, and reports whether that is news."""
        with self._lock:
            news, self.open = self.open == there, not there
            self._row, self._probing = 0, False
            self._next = time.monotonic() + self._interval * random.uniform(0.5, 1.5)
            return news

    def _begin(self, wanted: bool) -> bool:
        begin = wanted and not self._probing
        self._probing = self._probing or begin
        return begin
