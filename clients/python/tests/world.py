"""Servers for the tests: real ones, which a test in Go starts (go test ./internal/e2e -run TestPythonClient), and false ones."""

import asyncio
import json
import os
import socket
import threading
import time
import urllib.request

import stint

PATIENCE = 20.0
ONE = """
[[rules]]
name     = "users"
count_by = ["user"]
limits   = [{ name = "hourly", limit = "3/1000h fixed_window" }]
"""
TOKENS = """
[[rules]]
name     = "tokens"
count_by = ["user"]
cost     = { meter = "llm.total_tokens", reserve = 10 }
limits   = [{ name = "tokens", limit = "1000/1000h fixed_window" }]
"""


def control(what, body):
    try:
        url = os.environ["STINT_CONTROL"]
    except KeyError:
        raise SystemExit("these tests need servers: run go test ./internal/e2e -run TestPythonClient") from None
    with urllib.request.urlopen(f"{url}/{what}", data=body.encode(), timeout=PATIENCE) as answer:
        return json.loads(answer.read())


class Server:
    """A stint."""

    def __init__(self, config=ONE):
        self.address = control("start", config)
        self.url = "http://" + self.address

    def __getattr__(self, what):  # kill, pause, resume, restart
        return lambda: control(what, self.address)


class Threads:
    """How tests call a Client."""

    kind = stint.Client

    def __call__(self, result):
        return result

    def idle(self, seconds=0.005):
        time.sleep(seconds)

    def with_(self, reservation, work):
        with reservation:
            return work(reservation)

    def close(self):
        pass


class Loop:
    """How the same tests call an AsyncClient."""

    kind = stint.AsyncClient

    def __init__(self):
        self.loop = asyncio.new_event_loop()

    def __call__(self, result):
        return self.loop.run_until_complete(result)

    def idle(self, seconds=0.005):
        self(asyncio.sleep(seconds))

    def with_(self, reservation, work):
        async def inside():
            async with reservation:
                return work(reservation)

        return self(inside())

    def close(self):
        self.loop.close()


class False_:
    """Answers each call with the next of these bytes, the last one again and again, and keeps what it was sent. None closes
    the connection without an answer, and a list is sent piece by piece, with a pause between."""

    def __init__(self, *answers):
        self.answers, self.calls = list(answers), []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection):
        with connection:
            data = b""
            while True:
                try:
                    got = connection.recv(65536)
                except OSError:
                    return
                data += got
                head, found, body = data.partition(b"\r\n\r\n")
                length = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
                if not got:
                    return
                if not found or len(body) < length[0]:
                    continue
                data = b""
                self.calls.append((time.monotonic(), head, body))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                try:
                    if answer is None:
                        return
                    for piece in answer if isinstance(answer, list) else [answer]:
                        connection.sendall(piece)
                        if isinstance(answer, list):
                            time.sleep(0.02)
                    head, _, body = (b"".join(answer) if isinstance(answer, list) else answer).rpartition(b"\r\n\r\n")
                    if b"chunked" not in head and f"Content-Length: {len(body)}".encode() not in head:
                        return
                except OSError:
                    return

    def close(self):
        self._listener.close()


def http(status, body, *headers, kind="application/json"):
    text = json.dumps(body).encode() if not isinstance(body, bytes) else body
    head = "".join(f"{h}\r\n" for h in headers)
    return f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\n{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


def problem(status, detail, *headers):
    return http(status, {"type": "about:blank", "title": "No", "status": status, "detail": detail}, *headers, kind="application/problem+json")


VERDICT = {"allowed": True, "outcome": "allowed", "retry_after": 0, "decision_id": "x", "limits": []}
RECEIPT = {"decision_id": "x", "repeated": False, "limits": []}
