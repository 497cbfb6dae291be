"""A client of Stint, a distributed rate limiter.

    client = stint.Client("http://localhost:8080")
    verdict = client.check(stint.Check(path="/search", user="alice"))

Client is for threads, AsyncClient for asyncio. Modules stint.wsgi and stint.asgi limit whole applications.
"""

from .aio import AsyncClient, AsyncReservation
from .answers import Extension, Reserved, Taken, Verdict
from .client import Client, Reservation
from ._core import Stats
from .errors import CallError, StintError, UnreachableError
from .types import Ask, Cancel, Check, Commit, Extend, Limit, Problem, Receipt, Reserve, Settled, TakenLimit

__all__ = [
    "Ask", "AsyncClient", "AsyncReservation", "CallError", "Cancel", "Check", "Client", "Commit", "Extend", "Extension", "Limit",
    "Problem", "Receipt", "Reservation", "Reserve", "Reserved", "Settled", "Stats", "StintError", "Taken", "TakenLimit",
    "UnreachableError", "Verdict",
]
