"""Errors. That a request does not pass is none: it is a verdict."""

from __future__ import annotations

import re
from typing import Optional

from . import types


class StintError(Exception):
    """A call that has failed."""

    #: How many seconds the server wants the caller to wait, if it says so.
    retry_after: Optional[float] = None


class CallError(StintError):
    """The server has rejected the call, or could not carry it out."""

    def __init__(self, call: str, status: int, problem: Optional[types.Problem] = None, retry_after: Optional[float] = None) -> None:
        self.call = call
        self.status = status
        self.problem = problem
        self.detail = (problem and problem.detail) or ""
        self.retry_after = retry_after
        super().__init__(f"stint: {call}: the server answered {status}: {self.detail or (problem and problem.title) or 'no reason'}")

    @property
    def field(self) -> Optional[str]:
        """The field that is wrong, such as path or requests[1].user, if the server has named one."""
        found = re.match(r"""((?:[\w\[\].-]|"[^"]*")+): """, self.detail) if self.status == 400 else None
        return found.group(1) if found else None


class UnreachableError(StintError):
    """There is no answer of the server: it is away, too slow, or something else has answered in its place."""

    def __init__(self, call: str, why: str, retry_after: Optional[float] = None) -> None:
        self.call = call
        self.retry_after = retry_after
        super().__init__(f"stint: {call}: {why}")
