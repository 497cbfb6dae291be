"""The client for programs with threads, or with none."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from types import TracebackType
from typing import Any, List, Mapping, Optional, Sequence, Type, TypeVar, Union

from . import _http, types
from ._core import ATTEMPT, FIRST_WAIT, LONGEST_WAIT, Call, Core, OnFailure, Stats
from .answers import Extension, Reserved, Taken, Verdict
from .errors import CallError, StintError, UnreachableError

T = TypeVar("T")


class Client:
    """Asks the decision API of a server. It is safe for concurrent use, and after a fork.

    Check, reserve, extend and take are sent once, since one whose answer was lost may have been counted. They are decided
    by fail_mode if there is no answer within timeout seconds. Commit and cancel are applied once however often they arrive,
    so they are sent again, for up to settle_timeout seconds.
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
        max_idle: int = 32,
        ssl_context: Optional[ssl.SSLContext] = None,
    ) -> None:
        """Makes a client of the server at url, such as http://localhost:8080, and connects when it is first used.

        token           one of server.http.tokens, if the server has some
        timeout         how many seconds a decision may take, connecting included. A rule that throttles holds the answer
                        for up to its max_delay: the timeout must be longer
        settle_timeout  how many seconds commit, cancel and usage are sent again
        fail_mode       what happens to a request that the server has not decided: open (it passes), closed (it does not),
                        or error (the call raises)
        on_failure      is called with the name of the call and the error, for each call that was decided or given up
                        without the server
        breaker_failures, breaker_interval
                        after so many decisions in a row without an answer, the server is probed; if it does not answer,
                        it is not asked again before a probe is answered, every so many seconds
        max_idle        how many idle connections are kept
        ssl_context     for https; by default, certificates are verified by those that the system trusts
        """
        self._core = Core(url, token, timeout, settle_timeout, fail_mode, on_failure, breaker_failures, breaker_interval)
        self._ssl = (ssl_context or ssl.create_default_context()) if self._core.tls else None
        self._max_idle = max_idle
        self._idle: List[socket.socket] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def stats(self) -> Stats:
        """What the client has had to do without the server."""
        return self._core.stats

    def check(self, ask: types.Check) -> Verdict:
        """Decides a request. That it does not pass is not an error."""
        return self._decide(self._core.check(ask))

    def check_batch(self, asks: Sequence[types.Check]) -> List[Verdict]:
        """Decides up to 1,000 requests, each by itself. One that could not be decided does not pass, and has a failure."""
        return self._decide(self._core.check_batch(asks))

    def reserve(self, ask: types.Reserve) -> Reservation:
        """Decides a request, and reserves what it may cost. Use the reservation in a with statement, or settle it."""
        return Reservation(self, self._decide(self._core.reserve(ask)))

    def reserve_batch(self, asks: Sequence[types.Reserve]) -> List[Reservation]:
        """Reserves for up to 1,000 requests, each by itself. One that could not be decided does not pass."""
        return [Reservation(self, v) for v in self._decide(self._core.reserve_batch(asks))]

    def commit(self, used: types.Commit) -> types.Receipt:
        """Settles a reservation by what was used."""
        return self._settle(self._core.commit(used))

    def commit_batch(self, used: Sequence[types.Commit]) -> List[Union[types.Receipt, CallError]]:
        """Settles up to 1,000 reservations. One that fails has an error in its place."""
        return self._settle(self._core.settle_batch("commit", used))

    def cancel(self, unused: types.Cancel) -> types.Receipt:
        """Gives a reservation back."""
        return self._settle(self._core.cancel(unused))

    def cancel_batch(self, unused: Sequence[types.Cancel]) -> List[Union[types.Receipt, CallError]]:
        """Gives up to 1,000 reservations back. One that fails has an error in its place."""
        return self._settle(self._core.settle_batch("cancel", unused))

    def extend(self, more: types.Extend) -> Extension:
        """Reserves more. Use the ticket of the extension from then on, whether it is allowed or not."""
        return self._decide(self._core.extend(more))

    def extend_batch(self, more: Sequence[types.Extend]) -> List[Union[Extension, CallError]]:
        """Extends up to 1,000 reservations. One that fails has an error in its place."""
        return self._decide(self._core.extend_batch(more))

    def take(self, *asks: types.Ask) -> Taken:
        """Takes from counters that the call names, without rules: from all of them, or from none."""
        return self._decide(self._core.take(asks))

    def usage(
        self, *, user: Optional[str] = None, tenant: Optional[str] = None, api_key: Optional[str] = None, ip: Optional[str] = None
    ) -> List[types.Limit]:
        """Returns the limits of a subject, and what remains of them."""
        return self._repeat(self._core.usage({"user": user, "tenant": tenant, "api_key": api_key, "ip": ip}))

    def close(self) -> None:
        """Closes the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for sock in idle:
            sock.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _decide(self, call: Call[T]) -> T:
        core = self._core
        if core.breaker.open:
            if core.breaker.due():
                self._probe()
            return core.decide_without(call, core.away(call.name))
        try:
            out = call.read(self._ask(call, core.timeout))
            core.breaker.answered()
            return out
        except UnreachableError as e:
            if core.breaker.failed():
                self._probe()
            return core.decide_without(call, e)
        except CallError as e:
            core.breaker.answered()
            if e.status < 500:
                raise
            return core.decide_without(call, e)

    def _probe(self) -> None:
        """Probes the server in a thread that ends by itself, so that no caller waits for it."""

        def probe() -> None:
            there = False
            try:
                self._core.probe.read(self._ask(self._core.probe, self._core.timeout))
                there = True
            except CallError:
                there = True
            except UnreachableError:
                pass
            finally:
                self._core.probed(there)

        try:
            threading.Thread(target=probe, name="stint-probe", daemon=True).start()
        except RuntimeError:  # there are too many threads, or the program ends
            self._core.probed(False)

    def _settle(self, call: Call[T]) -> T:
        try:
            return self._repeat(call)
        except StintError as e:
            if not isinstance(e, CallError) or e.status >= 500:
                self._core.unsettled(call, e)
            raise

    def _repeat(self, call: Call[T]) -> T:
        end, wait = time.monotonic() + self._core.settle_timeout, FIRST_WAIT
        while True:
            try:
                return call.read(self._ask(call, min(ATTEMPT, max(end - time.monotonic(), 0.001))))
            except CallError as e:
                if e.status < 500:
                    raise
                error: StintError = e
            except UnreachableError as e:
                error = e
            pause = self._core.pause(wait, error)
            if time.monotonic() + pause >= end:
                raise error
            time.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT)

    def _ask(self, call: Call[Any], timeout: float) -> _http.Answer:
        """Sends a call, and returns the answer, whatever it says."""
        end = time.monotonic() + timeout
        sock = None
        try:
            sock = self._kept() or self._connect(end)
            sock.settimeout(_left(end))
            sock.sendall(call.data)
            answer = _http.Answer()
            whole = False
            while not whole:
                sock.settimeout(_left(end))
                whole = answer.feed(sock.recv(64 << 10))
        except BaseException as e:
            if sock is not None:
                sock.close()
            if isinstance(e, (OSError, _http.ProtocolError)):
                raise self._core.unreachable(call.name, e) from e
            raise
        with self._lock:
            keep = answer.reusable and len(self._idle) < self._max_idle and self._pid == os.getpid()
            if keep:
                self._idle.append(sock)
        if not keep:
            sock.close()
        return answer

    def _kept(self) -> Optional[socket.socket]:
        """Returns an idle connection that the server has not closed, or None."""
        while True:
            with self._lock:
                if self._pid != os.getpid():  # connections of before a fork are the parent's, which keeps them
                    for sock in self._idle:
                        sock.close()
                    self._pid, self._idle = os.getpid(), []
                if not self._idle:
                    return None
                sock = self._idle.pop()
            sock.setblocking(False)
            try:
                sock.recv(1)  # its end, or what no one has asked for
            except (BlockingIOError, ssl.SSLWantReadError):
                return sock
            except OSError:
                pass
            sock.close()

    def _connect(self, end: float) -> socket.socket:
        failure: OSError = OSError("the name has no address")
        for family, kind, proto, _, address in socket.getaddrinfo(self._core.host, self._core.port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, proto)
            try:
                sock.settimeout(_left(end))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._ssl is None:
                    return sock
                sock.settimeout(_left(end))
                return self._ssl.wrap_socket(sock, server_hostname=self._core.host)
            except OSError as e:
                sock.close()
                failure = e
        raise failure


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise socket.timeout("timed out")
    return left


class Reservation:
    """What was reserved for a request. As a with statement, it is settled at the end of the block: what use has said is
    committed, and if it has said nothing, it is cancelled. A settlement that does not reach the server raises nothing
    there, since the work is done: on_failure and stats tell."""

    def __init__(self, client: Client, verdict: Reserved) -> None:
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

    def extend(self, cost: Optional[int] = None, *, usage: Optional[Mapping[str, int]] = None, expires_in: Optional[int] = None) -> bool:
        """Reserves more, and reports whether that is allowed."""
        if self.ticket is None:
            return self.allowed
        more = self._client.extend(types.Extend(self.ticket, cost=cost, usage=usage, expires_in=expires_in))
        self.ticket = more.ticket
        return more.allowed

    def settle(self) -> Optional[types.Receipt]:
        """Commits what use has said, or cancels. It returns None if there is nothing to settle."""
        if self.ticket is None or self._settled:
            return None
        if self._used is None:
            receipt = self._client.cancel(types.Cancel(self.ticket))
        else:
            receipt = self._client.commit(types.Commit(self.ticket, cost=self._used.cost, usage=self._used.usage, model=self._used.model))
        self._settled = True
        return receipt

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        try:
            self.settle()
        except StintError as e:
            if error is None and isinstance(e, CallError) and e.status < 500:
                raise
