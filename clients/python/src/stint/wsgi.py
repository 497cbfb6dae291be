"""Limits a WSGI application: Flask, Django, Pyramid and others."""

from __future__ import annotations

import urllib.parse
from typing import Any, Callable, Dict, Iterable, List, Tuple

from . import types
from ._core import address
from .answers import Response, phrase, refusal
from .client import Client
from .errors import CallError

Environ = Dict[str, Any]
Application = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


def ask(environ: Environ) -> types.Check:
    """Describes a request by its method, path, peer and headers: these say who is asking, as they do to Stint's gateway."""
    headers = {name[5:].replace("_", "-").title(): value for name, value in environ.items() if name.startswith("HTTP_")}
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return types.Check(
        path="/" + urllib.parse.quote(path.encode("latin-1")).lstrip("/"),
        method=environ["REQUEST_METHOD"],
        ip=address(environ.get("REMOTE_ADDR")),
        headers=headers,
    )


class Middleware:
    """Passes on the requests that may pass, and answers the others. Each has its verdict in environ["stint.verdict"]."""

    def __init__(self, app: Application, client: Client, describe: Callable[[Environ], types.Check] = ask) -> None:
        """Wraps an application. A function that describes requests can say the user, whom the application knows."""
        self._app, self._client, self._describe = app, client, describe

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            verdict = self._client.check(self._describe(environ))
        except CallError as e:
            return self._deny(environ, start_response, refusal(e))
        if not verdict.allowed:
            return self._deny(environ, start_response, verdict.response())
        environ["stint.verdict"] = verdict
        if verdict.unaccepted is not None:
            environ.pop("HTTP_AUTHORIZATION", None)  # it has a token that was not accepted
        environ.pop("HTTP_STINT_OVER", None)  # of the client
        if verdict.over is not None:
            environ["HTTP_STINT_OVER"] = verdict.over

        def start(status: str, headers: List[Tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*headers, *verdict.headers.items()], *rest)

        return self._app(environ, start)

    @staticmethod
    def _deny(environ: Environ, start_response: Callable[..., Any], response: Response) -> Iterable[bytes]:
        status, headers, body = response
        start_response(f"{status} {phrase(status)}", [*headers.items(), ("Content-Length", str(len(body)))])
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]
