"""Limits an ASGI application: FastAPI, Starlette, Django, Quart and others."""

from __future__ import annotations

import urllib.parse
from typing import Any, Awaitable, Callable, Dict, List, MutableMapping

from . import types
from ._core import address
from .aio import AsyncClient
from .answers import refusal
from .errors import CallError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def ask(scope: Scope) -> types.Check:
    """Describes a request by its method, path, peer and headers: these say who is asking, as they do to Stint's gateway."""
    headers: Dict[str, List[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return types.Check(
        path="/" + urllib.parse.quote(scope["path"], errors="replace").lstrip("/"),
        method=scope.get("method", "GET"),
        ip=address((scope.get("client") or [None])[0]),
        headers=headers,
    )


class Middleware:
    """Passes on requests and websockets that may pass, and answers the others. Each has its verdict in
    scope["stint.verdict"]."""

    def __init__(self, app: Application, client: AsyncClient, describe: Callable[[Scope], types.Check] = ask) -> None:
        """Wraps an application. A function that describes requests can say the user, whom the application knows."""
        self._app, self._client, self._describe = app, client, describe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            verdict = await self._client.check(self._describe(scope))
        except CallError as e:
            await self._deny(scope, receive, send, refusal(e))
            return
        if not verdict.allowed:
            await self._deny(scope, receive, send, verdict.response())
            return
        scope = {**scope, "stint.verdict": verdict}
        ours = {b"stint-over"}
        if verdict.unaccepted is not None:  # the token was not accepted
            ours.add(b"authorization")
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name.lower() not in ours]
        if verdict.over is not None:
            scope["headers"].append((b"stint-over", verdict.over.encode()))
        limits = _raw(verdict.headers)

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] in ("http.response.start", "websocket.accept"):
                message = {**message, "headers": [*message.get("headers", []), *limits]}
            await send(message)

        await self._app(scope, receive, sending)

    @staticmethod
    async def _deny(scope: Scope, receive: Receive, send: Send, response: Any) -> None:
        status, headers, body = response
        kind = "http.response"
        if scope["type"] == "websocket":
            await receive()  # websocket.connect
            if "websocket.http.response" not in scope.get("extensions", {}):
                await send({"type": "websocket.close", "code": 1008})
                return
            kind = "websocket.http.response"
        raw = [*_raw(headers), (b"content-length", str(len(body)).encode())]
        await send({"type": f"{kind}.start", "status": status, "headers": raw})
        await send({"type": f"{kind}.body", "body": b"" if scope.get("method") == "HEAD" else body})


def _raw(headers: Any) -> Any:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]
