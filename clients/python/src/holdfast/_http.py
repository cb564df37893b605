"""HTTP/1.1, as far as holdfast serve speaks it, over asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from ._errors import HoldfastError, Invalid, NotAllowed, StoreUnavailable, error_of

_MAX_LINE = 16 << 20
_CALL_LIMIT = 30.0  # seconds for the answer to a call; the server gives its store 10
_IDLE_LIMIT = 60.0  # seconds until an unused connection is not used again; the server closes it after 120
_KEPT = 8  # unused connections

SILENCE = 30.0
"""A waiting stream has a line every 10 s at least. If none comes for so many seconds, the server is gone."""


class Unreachable(StoreUnavailable):
    """There is no connection to the server, so nothing was sent."""


class Address:
    """Where a server is, and how to call it."""

    def __init__(self, url: str, token: str | None, tls: ssl.SSLContext | None = None) -> None:
        if token is not None and any(c in token for c in "\r\n\0"):
            raise Invalid("the token has a line end: strip what was read from a file")
        self.url, self.token, self.tls = url, token or None, tls
        self.path = ""
        if url.startswith("unix:"):
            self.path = url[len("unix:") :].removeprefix("//")
            self.host, self.port = "localhost", 0
            return
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.path.strip("/"):
            raise Invalid("the URL of a server is https://HOST:PORT, http://HOST:PORT or unix:PATH")
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        if parts.scheme == "https" and tls is None:
            self.tls = ssl.create_default_context()

    async def connect(self) -> Connection:
        try:
            async with asyncio.timeout(_CALL_LIMIT):
                if self.path:
                    reader, writer = await asyncio.open_unix_connection(self.path, limit=_MAX_LINE)
                else:
                    reader, writer = await asyncio.open_connection(
                        self.host, self.port, ssl=self.tls, limit=_MAX_LINE
                    )
        except (OSError, TimeoutError) as e:
            why = str(e) or "no answer"
            if isinstance(e, ssl.SSLError) and e.reason == "WRONG_VERSION_NUMBER":
                why = "it does not speak TLS: use http:// in its URL, if that is meant"
            raise Unreachable(f"{self.url} cannot be reached: {why}") from e
        return Connection(self, reader, writer)


_open: set[asyncio.StreamWriter] = set()


def forget_connections() -> None:
    """Is called in a forked process: its copies of connections must not keep those of its parent open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for writer in _open:
        fd = writer.get_extra_info("socket").fileno()
        if fd >= 0:
            os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)


class Connection:
    """A connection to a server, for one request at a time."""

    def __init__(self, to: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._to, self._reader, self._writer = to, reader, writer
        self.used_at = time.monotonic()
        _open.add(writer)

    def is_fresh(self) -> bool:
        return not self._reader.at_eof() and time.monotonic() - self.used_at < _IDLE_LIMIT

    def close(self) -> None:
        """Ends the connection also if a forked process has a copy of it."""
        _open.discard(self._writer)
        if self._to.tls is None:
            with contextlib.suppress(OSError):
                self._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._writer.close()

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None, key: str | None = None) -> Response:
        data = b"" if body is None else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", f"Host: {self._to.host}", f"Content-Length: {len(data)}"]
        if body is not None:
            head.append("Content-Type: application/json")
        if key is not None:
            head.append(f"Idempotency-Key: {key}")
        if self._to.token is not None:
            head.append(f"Authorization: Bearer {self._to.token}")
        self._writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + data)
        await self._writer.drain()
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            fields[name.lower()] = value.strip()
        return Response(int(lines[0].split(" ", 2)[1]), fields, self._reader)


class Response:
    def __init__(self, status: int, fields: dict[str, str], reader: asyncio.StreamReader) -> None:
        self.status, self._fields, self._reader = status, fields, reader

    def keeps_connection(self) -> bool:
        return self._fields.get("connection", "").lower() != "close"

    async def _parts(self) -> AsyncIterator[bytes]:
        if "chunked" not in self._fields.get("transfer-encoding", "").lower():
            length = self._fields.get("content-length")
            yield await (self._reader.read() if length is None else self._reader.readexactly(int(length)))
            return
        while True:
            size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
            part = await self._reader.readexactly(size)
            await self._reader.readexactly(2)
            if size == 0:
                return
            yield part

    async def read_object(self) -> dict[str, Any]:
        data = b"".join([part async for part in self._parts()])
        try:
            value = json.loads(data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Foreign(self.status, data.decode(errors="replace"))
        return value

    async def objects(self) -> AsyncIterator[dict[str, Any]]:
        """The lines of a stream. The end of the connection is an error; the end of the answer is not."""
        rest = b""
        async for part in self._parts():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield json.loads(line)


class Foreign(ValueError):
    """An answer that is not of holdfast serve."""

    def __init__(self, status: int, text: str) -> None:
        if status == 400 and "HTTPS" in text:  # so do the servers of Go and others
            super().__init__("the server speaks TLS: use https:// in its URL")
        else:
            super().__init__(f"this is not holdfast serve: it answers {' '.join(text.split())[:100]!r}, with the status {status}")


# What a broken connection, or an answer that is not of holdfast serve, raises.
BROKEN = (OSError, EOFError, ValueError, asyncio.LimitOverrunError)


def _broken(e: BaseException) -> StoreUnavailable:
    return StoreUnavailable(str(e) if isinstance(e, Foreign) else f"the connection to the server has ended: {e}")


def is_broken(e: StoreUnavailable) -> bool:
    """Whether the connection has ended, and not the time for an answer."""
    return isinstance(e.__cause__, BROKEN) and not isinstance(e.__cause__, TimeoutError)


class Stream:
    """An answer that is a stream of lines. It has a connection of its own."""

    def __init__(self, connection: Connection, response: Response) -> None:
        self._connection = connection
        self._lines = response.objects()

    async def next(self, limit: float | None = None) -> dict[str, Any] | None:
        """The next line, or None at the end. No line within the limit is an error."""
        try:
            async with asyncio.timeout(limit):
                return await anext(self._lines, None)
        except TimeoutError as e:
            raise StoreUnavailable("the server sends nothing") from e
        except BROKEN as e:
            raise _broken(e) from e

    def close(self) -> None:
        self._connection.close()


class Server:
    """Calls a server. Connections are kept for later calls."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._unused: list[Connection] = []

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        limit: float = _CALL_LIMIT,
        again: bool = True,
    ) -> dict[str, Any]:
        """Calls, and returns the answer. ``again``: it does no harm if the call arrives twice."""
        while self._unused:
            connection = self._unused.pop()
            if not connection.is_fresh():
                connection.close()
                continue
            try:
                return await self._call_on(connection, method, path, body, limit)
            except StoreUnavailable as e:
                if not again or not is_broken(e):
                    raise
                break  # the server may have closed it meanwhile
        return await self._call_on(await self._address.connect(), method, path, body, limit)

    async def _call_on(
        self, connection: Connection, method: str, path: str, body: Mapping[str, Any] | None, limit: float
    ) -> dict[str, Any]:
        kept = False
        try:
            async with asyncio.timeout(limit):
                response = await connection.request(method, path, body)
                answer = await response.read_object()
            kept = response.keeps_connection() and len(self._unused) < _KEPT
        except TimeoutError as e:
            raise StoreUnavailable("the server does not answer") from e
        except BROKEN as e:
            raise _broken(e) from e
        finally:
            if kept:
                connection.used_at = time.monotonic()
                self._unused.append(connection)
            else:
                connection.close()
        if response.status != 200:
            raise self._refusal(answer)
        return answer

    def _refusal(self, answer: Mapping[str, Any]) -> HoldfastError:
        error = error_of(answer)
        if error.code == "unauthorized" and self._address.token is None:
            return NotAllowed(f"{error} (here: pass token= to connect)", answer)
        return error

    async def stream(
        self, method: str, path: str, body: Mapping[str, Any] | None, limit: float | None, key: str | None = None
    ) -> Stream:
        """Opens a stream. ``limit`` is for its first line; None is no limit. ``key`` is the one of a request sent again."""
        connection = await self._address.connect()
        try:
            async with asyncio.timeout(limit):
                response = await connection.request(method, path, body, key)
                answer = None if response.status == 200 else await response.read_object()
        except BaseException as e:
            connection.close()
            if isinstance(e, TimeoutError):
                raise StoreUnavailable("the server does not answer") from e
            if isinstance(e, BROKEN):
                raise _broken(e) from e
            raise
        if answer is not None:
            connection.close()
            raise self._refusal(answer)
        return Stream(connection, response)

    def close(self) -> None:
        for connection in self._unused:
            connection.close()
        self._unused.clear()
