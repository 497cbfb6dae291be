"""What both clients share: the calls, what their answers mean, and what to do without an answer. It does no I/O."""

from __future__ import annotations

import ipaddress
import json
import logging
import random
import threading
import urllib.parse
from dataclasses import dataclass
from typing import Any, Callable, Dict, Generic, List, Mapping, Optional, Sequence, TypeVar, Union

from . import _http, types
from ._breaker import Breaker
from ._json import decode, encode
from .answers import Extension, Reserved, Taken, Verdict, each, passed_on, unmade
from .errors import CallError, StintError, UnreachableError

T = TypeVar("T")
OnFailure = Callable[[str, StintError], None]
FIRST_WAIT, LONGEST_WAIT = 0.1, 10.0  # between the attempts of a call that is repeated
ATTEMPT = 1.0  # how long one of them waits for an answer

_log = logging.getLogger("stint")


@dataclass(frozen=True)
class Stats:
    """What a client has had to do without the server."""

    #: Calls that were decided without the server.
    undecided: int
    #: Commits and cancels that have not reached the server: what was reserved stays charged.
    unsettled: int
    #: The server does not answer now, and is not asked.
    unreachable: bool


@dataclass(frozen=True)
class Call(Generic[T]):
    """A call: what to send, how to read the answer, and what to say without one."""

    name: str
    data: bytes
    read: Callable[[_http.Answer], T]
    without: Optional[Callable[[str, StintError], T]] = None
    #: A server that cannot decide has said that the request must not pass.
    strict: bool = False


class Core:
    """The options of a client, and its calls."""

    def __init__(
        self, url: str, token: Optional[str], timeout: float, settle_timeout: float, fail_mode: str,
        on_failure: Optional[OnFailure], breaker_failures: int, breaker_interval: float,
    ) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError as e:
            raise ValueError(f"url: {e}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username is not None:
            raise ValueError("url: want the URL of a server, such as http://localhost:8080")
        for name, value in {"timeout": timeout, "settle_timeout": settle_timeout, "breaker_failures": breaker_failures, "breaker_interval": breaker_interval}.items():
            if not value > 0:
                raise ValueError(f"{name}: want a number above 0, found {value!r}")
        if fail_mode not in ("open", "closed", "error"):
            raise ValueError(f"fail_mode: want open, closed or error, found {fail_mode!r}")
        if token is not None and (not token.isascii() or not token.isprintable() or " " in token):
            raise ValueError("token: want printable ASCII without spaces")
        self.tls = parts.scheme == "https"
        self.host, self.port = parts.hostname, port or (443 if self.tls else 80)
        self.timeout, self.settle_timeout, self.fail_mode = timeout, settle_timeout, fail_mode
        self.breaker = Breaker(breaker_failures, breaker_interval)
        self._name = parts.netloc
        self._prefix, self._token, self._on_failure = parts.path.rstrip("/"), token, on_failure
        self._lock = threading.Lock()
        self._undecided = self._unsettled = 0
        self.probe: Call[Any] = self._call("check", {"path": "/", "peek": True}, lambda data, _: data)

    @property
    def stats(self) -> Stats:
        return Stats(self._undecided, self._unsettled, self.breaker.open)

    # What went wrong.

    def away(self, call: str) -> UnreachableError:
        return UnreachableError(call, f"{self._name} has not answered for a while")

    def unreachable(self, call: str, why: BaseException) -> UnreachableError:
        said = "no answer in time" if isinstance(why, TimeoutError) or "timed out" in str(why) else str(why) or type(why).__name__
        return UnreachableError(call, f"{self._name}: {said}")

    def decide_without(self, call: Call[T], error: StintError) -> T:
        """Decides a call without the server."""
        assert call.without is not None
        with self._lock:
            self._undecided += 1
        self._tell(call.name, error)
        if self.fail_mode == "error":
            raise error
        return call.without("closed" if call.strict and isinstance(error, CallError) else self.fail_mode, error)

    def unsettled(self, call: Call[T], error: StintError) -> None:
        """Notes that a settlement has not reached the server."""
        with self._lock:
            self._unsettled += 1
        self._tell(call.name, error)

    def probed(self, there: bool) -> None:
        if self.breaker.probed(there):
            if there:
                _log.warning("%s answers again", self._name)
            else:
                _log.warning("%s does not answer; until it does, fail_mode %r decides", self._name, self.fail_mode)

    def _tell(self, call: str, error: StintError) -> None:
        if self._on_failure is None:
            return
        try:
            self._on_failure(call, error)
        except Exception:  # whoever only watches must not fail requests
            _log.exception("on_failure has failed")

    @staticmethod
    def pause(wait: float, error: StintError) -> float:
        """Returns how long to wait before a call is repeated: not less than the server wants, and not all at once."""
        return max(wait * random.uniform(0.5, 1), (error.retry_after or 0) * random.uniform(1, 1.1))

    # The calls.

    def check(self, ask: types.Check) -> Call[Verdict]:
        return self._call(
            "check", encode(ask), lambda data, h: decode(Verdict, data, headers=passed_on(h)), lambda mode, e: Verdict(**unmade(mode, e)), strict=True
        )

    def check_batch(self, asks: Sequence[types.Check]) -> Call[List[Verdict]]:
        return self._verdicts("check", asks, Verdict)

    def reserve(self, ask: types.Reserve) -> Call[Reserved]:
        return self._call(
            "reserve", encode(ask), lambda data, h: decode(Reserved, data, headers=passed_on(h)), lambda mode, e: Reserved(**unmade(mode, e)), strict=True
        )

    def reserve_batch(self, asks: Sequence[types.Reserve]) -> Call[List[Reserved]]:
        return self._verdicts("reserve", asks, Reserved)

    def commit(self, settled: types.Commit) -> Call[types.Receipt]:
        return self._call("commit", encode(settled), lambda data, _: decode(types.Receipt, data))

    def cancel(self, settled: types.Cancel) -> Call[types.Receipt]:
        return self._call("cancel", encode(settled), lambda data, _: decode(types.Receipt, data))

    def settle_batch(self, name: str, all: Sequence[Any]) -> Call[List[Union[types.Receipt, CallError]]]:
        return self._call(
            f"{name}/batch", {"requests": [encode(s) for s in all]},
            lambda data, _: each(_items(data, "receipts", len(all)), lambda item: decode(types.Receipt, item), name),
        )

    def extend(self, more: types.Extend) -> Call[Extension]:
        return self._call("extend", encode(more), lambda data, _: decode(Extension, data), lambda mode, e: _unextended(more, mode, e))

    def extend_batch(self, all: Sequence[types.Extend]) -> Call[List[Union[Extension, CallError]]]:
        return self._call(
            "extend/batch", {"requests": [encode(m) for m in all]},
            lambda data, _: each(_items(data, "extensions", len(all)), lambda item: decode(Extension, item), "extend"),
            lambda mode, e: [_unextended(more, mode, e) for more in all],
        )

    def take(self, asks: Sequence[types.Ask]) -> Call[Taken]:
        body = {"asks": [encode(a) for a in asks]} if len(asks) != 1 else encode(asks[0])
        return self._call(
            "take", body, lambda data, _: decode(Taken, data),
            lambda mode, e: Taken(allowed=mode == "open", retry_after=0 if mode == "open" else 1.0, delay=0, limits=[], failure=e),
        )

    def usage(self, who: Mapping[str, Optional[str]]) -> Call[List[types.Limit]]:
        query = urllib.parse.urlencode({name: value for name, value in who.items() if value is not None})
        return self._call(f"usage?{query}", None, lambda data, _: [decode(types.Limit, item) for item in _items(data, "limits")])

    def _verdicts(self, name: str, asks: Sequence[Any], cls: Any) -> Call[List[Any]]:
        def read(data: Any, _: Mapping[str, str]) -> List[Any]:
            got = each(_items(data, "verdicts", len(asks)), lambda item: decode(cls, item), name)
            return [cls(**unmade("closed", v)) if isinstance(v, CallError) else v for v in got]

        return self._call(
            f"{name}/batch", {"requests": [encode(a) for a in asks]}, read, lambda mode, e: [cls(**unmade(mode, e)) for _ in asks], strict=True
        )

    def _call(
        self, path: str, body: Optional[Dict[str, Any]], read: Callable[[Any, Mapping[str, str]], T],
        without: Optional[Callable[[str, StintError], T]] = None, strict: bool = False,
    ) -> Call[T]:
        text = b"" if body is None else json.dumps(body).encode()
        data = _http.request("GET" if body is None else "POST", f"{self._prefix}/v1/{path}", self._name, self._token, text)
        name = path.partition("?")[0]
        return Call(name, data, lambda answer: self._read(name, answer, read), without, strict)

    def _read(self, name: str, answer: _http.Answer, read: Callable[[Any, Mapping[str, str]], T]) -> T:
        try:
            data = json.loads(answer.body) if answer.status == 200 or "problem+json" in answer.headers.get("content-type", "") else None
            if answer.status == 200:
                return read(data, answer.headers)
            problem = None if data is None else decode(types.Problem, data)
        except ValueError as e:
            raise UnreachableError(name, f"the answer is not one of Stint: {e}") from None
        after = answer.headers.get("retry-after", "")
        wait = float(after) if after.isascii() and after.isdigit() and len(after) < 6 else None
        if problem is None and (answer.status >= 500 or answer.status in (408, 429)):  # of a proxy that is between
            raise UnreachableError(name, f"{self._name} answered {answer.status}, which was not Stint", wait)
        raise CallError(name, answer.status, problem, wait)


def _items(data: Any, key: str, want: Optional[int] = None) -> List[Any]:
    items = data.get(key) if isinstance(data, dict) else None
    if not isinstance(items, list) or want is not None and len(items) != want:
        raise ValueError(f"{key}: want a list" + ("" if want is None else f" of {want}"))
    return items


def _unextended(more: types.Extend, mode: str, error: StintError) -> Extension:
    return Extension(
        allowed=mode == "open", retry_after=0 if mode == "open" else 1.0, ticket=more.ticket, expires_in=0, limits=[], failure=error
    )


def address(text: Optional[str]) -> Optional[str]:
    """Returns the address of a peer, or None for what is none, such as the path of a socket."""
    try:
        return str(ipaddress.ip_address((text or "").partition("%")[0]))  # the zone means nothing elsewhere
    except ValueError:
        return None
