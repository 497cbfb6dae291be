"""The client for programs with asyncio."""

from __future__ import annotations

import asyncio
import ssl
import time
from types import TracebackType
from typing import Any, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

from . import _http, types
from ._core import ATTEMPT, FIRST_WAIT, LONGEST_WAIT, Call, Core, OnFailure, Stats
from .answers import Extension, Reserved, Taken, Verdict
from .errors import CallError, StintError, UnreachableError

T = TypeVar("T")
_Connection = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncClient:
    """Client with the same calls, options and behaviour, for one event loop at a time.

    It has at most max_connections connections. A call that waits for one does so within its timeout: set that higher
    where many calls begin at once.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Optional[str] = None,
        timeout: float = 0.1,
        settle_timeout: float = 5.0,
        fail_mode: str = "open",
        on_failure: Optional[OnFailure] = None,
        breaker_failures: int = 5,
        breaker_interval: float = 0.5,
        max_connections: int = 64,
        ssl_context: Optional[ssl.SSLContext] = None,
    ) -> None:
        """Makes a client of the server at url. Client says what the options mean."""
        self._core = Core(url, token, timeout, settle_timeout, fail_mode, on_failure, breaker_failures, breaker_interval)
        self._ssl = (ssl_context or ssl.create_default_context()) if self._core.tls else None
        if max_connections < 1:
            raise ValueError(f"max_connections: want at least 1, found {max_connections}")
        self._max = max_connections
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._idle: List[_Connection] = []
        self._free: asyncio.Semaphore
        self._probing: Optional[asyncio.Task[None]] = None  # or the task could be collected before it ends

    @property
    def stats(self) -> Stats:
        """What the client has had to do without the server."""
        return self._core.stats

    async def check(self, ask: types.Check) -> Verdict:
        """Decides a request. That it does not pass is not an error."""
        return await self._decide(self._core.check(ask))

    async def check_batch(self, asks: Sequence[types.Check]) -> List[Verdict]:
        """Decides up to 1,000 requests, each by itself. One that could not be decided does not pass, and has a failure."""
        return await self._decide(self._core.check_batch(asks))

    async def reserve(self, ask: types.Reserve) -> AsyncReservation:
        """Decides a request, and reserves what it may cost. Use the reservation in async with, or settle it."""
        return AsyncReservation(self, await self._decide(self._core.reserve(ask)))

    async def reserve_batch(self, asks: Sequence[types.Reserve]) -> List[AsyncReservation]:
        """Reserves for up to 1,000 requests, each by itself. One that could not be decided does not pass."""
        return [AsyncReservation(self, v) for v in await self._decide(self._core.reserve_batch(asks))]

    async def commit(self, used: types.Commit) -> types.Receipt:
        """Settles a reservation by what was used."""
        return await self._settle(self._core.commit(used))

    async def commit_batch(self, used: Sequence[types.Commit]) -> List[Union[types.Receipt, CallError]]:
        """Settles up to 1,000 reservations. One that fails has an error in its place."""
        return await self._settle(self._core.settle_batch("commit", used))

    async def cancel(self, unused: types.Cancel) -> types.Receipt:
        """Gives a reservation back."""
        return await self._settle(self._core.cancel(unused))

    async def cancel_batch(self, unused: Sequence[types.Cancel]) -> List[Union[types.Receipt, CallError]]:
        """Gives up to 1,000 reservations back. One that fails has an error in its place."""
        return await self._settle(self._core.settle_batch("cancel", unused))

    async def extend(self, more: types.Extend) -> Extension:
        """Reserves more. Use the ticket of the extension from then on, whether it is allowed or not."""
        return await self._decide(self._core.extend(more))

    async def extend_batch(self, more: Sequence[types.Extend]) -> List[Union[Extension, CallError]]:
        """Extends up to 1,000 reservations. One that fails has an error in its place."""
        return await self._decide(self._core.extend_batch(more))

    async def take(self, *asks: types.Ask) -> Taken:
        """Takes from counters that the call names, without rules: from all of them, or from none."""
        return await self._decide(self._core.take(asks))

    async def usage(
        self, *, user: Optional[str] = None, tenant: Optional[str] = None, api_key: Optional[str] = None, ip: Optional[str] = None
    ) -> List[types.Limit]:
        """Returns the limits of a subject, and what remains of them."""
        return await self._repeat(self._core.usage({"user": user, "tenant": tenant, "api_key": api_key, "ip": ip}))

    async def close(self) -> None:
        """Closes the idle connections."""
        idle, self._idle = self._idle, []
        if self._loop is asyncio.get_running_loop():  # those of another loop ended with it
            for _, writer in idle:
                await _closed(writer)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def _decide(self, call: Call[T]) -> T:
        core = self._core
        if core.breaker.open:
            if core.breaker.due():
                self._probing = asyncio.ensure_future(self._probe())
            return core.decide_without(call, core.away(call.name))
        try:
            out = call.read(await self._ask(call, core.timeout))
            core.breaker.answered()
            return out
        except UnreachableError as e:
            if core.breaker.failed():
                self._probing = asyncio.ensure_future(self._probe())
            return core.decide_without(call, e)
        except CallError as e:
            core.breaker.answered()
            if e.status < 500:
                raise
            return core.decide_without(call, e)

    async def _probe(self) -> None:
        there = False
        try:
            self._core.probe.read(await self._ask(self._core.probe, self._core.timeout))
            there = True
        except CallError:
            there = True
        except UnreachableError:
            pass
        finally:
            self._core.probed(there)

    async def _settle(self, call: Call[T]) -> T:
        try:
            return await self._repeat(call)
        except StintError as e:
            if not isinstance(e, CallError) or e.status >= 500:
                self._core.unsettled(call, e)
            raise

    async def _repeat(self, call: Call[T]) -> T:
        end, wait = time.monotonic() + self._core.settle_timeout, FIRST_WAIT
        while True:
            try:
                return call.read(await self._ask(call, min(ATTEMPT, max(end - time.monotonic(), 0.001))))
            except CallError as e:
                if e.status < 500:
                    raise
                error: StintError = e
            except UnreachableError as e:
                error = e
            pause = self._core.pause(wait, error)
            if time.monotonic() + pause >= end:
                raise error
            await asyncio.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _ask(self, call: Call[Any], timeout: float) -> _http.Answer:
        """Sends a call, and returns the answer, whatever it says."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._idle, self._free = loop, [], asyncio.Semaphore(self._max)
        try:
            return await asyncio.wait_for(self._exchange(call), timeout)
        except asyncio.TimeoutError as e:
            raise self._core.unreachable(call.name, TimeoutError("timed out")) from e
        except (OSError, _http.ProtocolError) as e:
            raise self._core.unreachable(call.name, e) from e

    async def _exchange(self, call: Call[Any]) -> _http.Answer:
        async with self._free:
            connection = None
            while self._idle and connection is None:
                connection = self._idle.pop()
                if connection[0].at_eof() or connection[1].is_closing():  # the server has closed it
                    connection[1].close()
                    connection = None
            if connection is None:
                connection = await asyncio.open_connection(self._core.host, self._core.port, ssl=self._ssl)
            reader, writer = connection
            try:
                writer.write(call.data)
                answer = _http.Answer()
                while not answer.feed(await reader.read(64 << 10)):
                    pass
            except BaseException:  # a call that is cut off leaves a connection that has an answer to come
                writer.transport.abort()
                raise
            if answer.reusable:
                self._idle.append(connection)
            else:
                writer.close()
            return answer


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        pass  # it was closed on the other side


class AsyncReservation:
    """What was reserved for a request. As async with, it is settled at the end of the block, as a Reservation is."""

    def __init__(self, client: AsyncClient, verdict: Reserved) -> None:
        self._client = client
        self._used: Optional[types.Commit] = None
        self._settled = False
        #: The verdict on the request.
        self.verdict = verdict
        #: The ticket that settles it, or None if there is nothing to settle.
        self.ticket = verdict.ticket

    @property
    def allowed(self) -> bool:
        """Whether the request may pass."""
        return self.verdict.allowed

    def use(self, cost: Optional[int] = None, *, usage: Optional[Mapping[str, int]] = None, model: Optional[str] = None) -> None:
        """Says what was used so far, in all: either as one number, or by meter. It replaces what was said before."""
        self._used = types.Commit(ticket="", cost=cost, usage=usage, model=model)

    async def extend(self, cost: Optional[int] = None, *, usage: Optional[Mapping[str, int]] = None, expires_in: Optional[int] = None) -> bool:
        """Reserves more, and reports whether that is allowed."""
        if self.ticket is None:
            return self.allowed
        more = await self._client.extend(types.Extend(self.ticket, cost=cost, usage=usage, expires_in=expires_in))
        self.ticket = more.ticket
        return more.allowed

    async def settle(self) -> Optional[types.Receipt]:
        """Commits what use has said, or cancels. It returns None if there is nothing to settle."""
        if self.ticket is None or self._settled:
            return None
        if self._used is None:
            receipt = await self._client.cancel(types.Cancel(self.ticket))
        else:
            receipt = await self._client.commit(types.Commit(self.ticket, cost=self._used.cost, usage=self._used.usage, model=self._used.model))
        self._settled = True
        return receipt

    async def __aenter__(self) -> AsyncReservation:
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        try:
            await self.settle()
        except StintError as e:
            if error is None and isinstance(e, CallError) and e.status < 500:
                raise
