"""One HTTP/1.1 exchange, without sockets: what to send, and what has arrived. Both clients use it."""

from __future__ import annotations

from typing import Dict, Optional

MAX_HEAD, MAX_BODY = 64 << 10, 16 << 20


class ProtocolError(Exception):
    """The connection has ended too soon, or what has arrived is no answer."""


def request(method: str, path: str, host: str, token: Optional[str], body: bytes) -> bytes:
    """Returns the bytes of a request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\nContent-Type: application/json\r\n"
    if token:
        head += f"Authorization: Bearer {token}\r\n"
    return (head + "\r\n").encode("latin-1") + body


class Answer:
    """An answer that arrives in pieces."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Dict[str, str] = {}  # by their names in lower case
        self.body = b""
        self.reusable = False  # the connection can have another request
        self._data = bytearray()
        self._length: Optional[int] = None  # of the body; None: as long as the connection
        self._chunked = False

    def feed(self, data: bytes) -> bool:
        """Takes what has arrived, and b"" at the end of the connection. It returns True when the answer is whole."""
        self._data += data
        if len(self._data) + len(self.body) > MAX_BODY:
            raise ProtocolError("the answer is too long")
        while not self.status:
            end = self._data.find(b"\r\n\r\n")
            if end > MAX_HEAD or end < 0 and len(self._data) > MAX_HEAD:
                raise ProtocolError("the answer has too many headers")
            if end < 0:
                if not data:
                    raise ProtocolError("the connection was closed before there was an answer")
                return False
            self._head(bytes(self._data[:end]).decode("latin-1"))
            del self._data[: end + 4]
        if self._chunked:
            whole = self._chunks()
        elif self._length is None:
            whole = not data
        else:
            whole = len(self._data) >= self._length
        if not whole and not data:
            raise ProtocolError("the connection was closed in the middle of the answer")
        if whole and not self._chunked:
            cut = len(self._data) if self._length is None else self._length
            self.body = bytes(self._data[:cut])
            self.reusable = self.reusable and len(self._data) == self._length
        return whole

    def _head(self, text: str) -> None:
        first, *lines = text.split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not code.isdigit() or len(code) != 3:
            raise ProtocolError("the answer is not HTTP/1.1")
        if code.startswith("1"):
            return  # it says that an answer follows
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.strip().lower(), value.strip()
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self.status = int(code)
        self._chunked = self.headers.get("transfer-encoding", "").lower().endswith("chunked")
        length = self.headers.get("content-length", "")
        if self.status in (204, 304):
            self._length = 0
        elif not self._chunked and length:
            if not (length.isascii() and length.isdigit()):
                raise ProtocolError(f"Content-Length {length!r}: want a number")
            self._length = int(length)
        close = "close" in self.headers.get("connection", "").lower()
        self.reusable = version == "HTTP/1.1" and not close and (self._chunked or self._length is not None)

    def _chunks(self) -> bool:
        while True:
            line = self._data.find(b"\r\n")
            if line < 0:
                return False
            try:
                size = int(bytes(self._data[:line]).split(b";")[0], 16)
            except ValueError:
                raise ProtocolError("a chunk of the answer has no size") from None
            if size == 0:  # the last one, and then trailers, which mean nothing here
                end = line if self._data[line : line + 4] == b"\r\n\r\n" else self._data.find(b"\r\n\r\n", line)
                self.reusable = self.reusable and end + 4 == len(self._data)
                return end >= 0
            if len(self._data) < line + 2 + size + 2:
                return False
            self.body += bytes(self._data[line + 2 : line + 2 + size])
            del self._data[: line + 2 + size + 2]
