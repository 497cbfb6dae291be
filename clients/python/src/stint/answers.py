"""Answers of the server, and those that a client makes itself while there is no server."""

from __future__ import annotations

import http
import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import types
from .errors import CallError, StintError

#: The status, the headers and the body of a response.
Response = Tuple[int, Dict[str, str], bytes]

_JSON = {"Content-Type": "application/problem+json", "X-Content-Type-Options": "nosniff"}
_REGISTRY = "https://iana.org/assignments/http-problem-types#"
_PROBLEMS = {
    "denied": (_REGISTRY + "quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded"),
    "banned": (_REGISTRY + "abnormal-usage-detected", "Request cannot be satisfied due to abnormal request pattern detected"),
    "unavailable": (_REGISTRY + "temporary-reduced-capacity", "Request cannot be satisfied due to temporary server capacity constraints"),
}


def _headers() -> Any:
    return field(default_factory=dict, compare=False, metadata={"client": True})


def _failure() -> Any:
    return field(default=None, compare=False, metadata={"client": True})


@dataclass(frozen=True)
class Verdict(types.Verdict):
    """The answer to a request: whether it may pass, and why."""

    #: The rate limit headers for the client who has sent the request. A batch has none.
    headers: Mapping[str, str] = _headers()
    #: Why the server has not decided it, if it has not: then the verdict is what fail_mode says.
    failure: Optional[StintError] = _failure()

    def response(self) -> Response:
        """Returns the status, the headers and the body to answer a request that does not pass."""
        return _response(self, self.headers)


@dataclass(frozen=True)
class Reserved(types.Reserved):
    """The answer to a request, with a ticket if something is reserved."""

    #: The rate limit headers for the client who has sent the request. A batch has none.
    headers: Mapping[str, str] = _headers()
    #: Why the server has not decided it, if it has not: then the verdict is what fail_mode says.
    failure: Optional[StintError] = _failure()

    def response(self) -> Response:
        """Returns the status, the headers and the body to answer a request that does not pass."""
        return _response(self, self.headers)


@dataclass(frozen=True)
class Taken(types.Taken):
    """The answer to a take."""

    #: Why the server has not decided it, if it has not: then allowed is what fail_mode says, and there are no limits.
    failure: Optional[StintError] = _failure()


@dataclass(frozen=True)
class Extension(types.Extension):
    """The answer to an extension."""

    #: Why the server has not decided it, if it has not: then allowed is what fail_mode says, the ticket is the one before,
    #: and expires_in is 0, since it is as valid as it was.
    failure: Optional[StintError] = _failure()


def unmade(mode: str, error: StintError) -> Dict[str, Any]:
    """Returns the fields of a verdict that the server has not made."""
    out: Dict[str, Any] = {"outcome": "allowed", "decision_id": "", "failure": error, "allowed": mode == "open", "retry_after": 0, "limits": []}
    if mode != "open":
        rejected = isinstance(error, CallError)
        status = error.status if isinstance(error, CallError) else 503
        wait = error.retry_after if rejected or error.retry_after else 1.0
        out.update(outcome="unavailable", status=status, retry_after=wait, headers=retry_header(wait))
        out["reason"] = (error.detail if isinstance(error, CallError) else "") or "Requests cannot be checked at the moment."
    return out


def retry_header(seconds: Optional[float]) -> Dict[str, str]:
    return {} if seconds is None else {"Retry-After": str(-int(-seconds // 1))}  # rounded up


def phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Denied"


def _response(v: Any, headers: Mapping[str, str]) -> Response:
    if v.allowed:
        raise ValueError("the request may pass: only one that may not has a response")
    status: int = v.status or 429
    kind, title = _PROBLEMS.get(v.outcome, ("about:blank", phrase(status)))
    body: Dict[str, Any] = {"type": kind, "title": title, "status": status, "detail": v.reason, "retry_after": v.retry_after, "decision_id": v.decision_id}
    if not v.decision_id:
        del body["decision_id"]
    out = {**headers, **_JSON}
    if status == 401:
        out["WWW-Authenticate"] = "Bearer"
    return status, out, json.dumps(body).encode()


def refusal(error: CallError) -> Response:
    """Returns how to answer a request of which the server has not understood the description, such as one with a path
    that is too long. Other errors are raised again: they are not the client's."""
    if error.status not in (400, 413, 414):
        raise error
    return 400, dict(_JSON), json.dumps({"type": "about:blank", "title": "Bad Request", "status": 400, "detail": error.detail}).encode()


#: The headers of an answer that are for the client who has sent the request.
_PASSED_ON = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Cost", "RateLimit-Policy", "RateLimit", "Retry-After"]


def passed_on(headers: Mapping[str, str]) -> Dict[str, str]:
    return {name: headers[name.lower()] for name in _PASSED_ON if name.lower() in headers}


def each(items: List[Any], make: Any, call: str) -> List[Any]:
    """Reads the answers of a batch. A problem in place of one becomes an error."""
    from ._json import decode

    out = []
    for item in items:
        if isinstance(item, dict) and "title" in item and "type" in item:
            problem = decode(types.Problem, item)
            out.append(CallError(call, problem.status, problem, problem.retry_after))
        else:
            out.append(make(item))
    return out
