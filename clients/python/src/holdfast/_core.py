"""The client, over asyncio. ``holdfast.aio`` shows it as it is; ``holdfast`` runs it in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

from . import _engine
from ._errors import (
    HoldfastError,
    Invalid,
    LockLost,
    Released,
    StoreUnavailable,
    Uncertain,
    error_of,
    lost,
)
from ._http import SILENCE, Address, Server, Stream, Unreachable, is_broken
from ._values import (
    Claim,
    Duration,
    LockInfo,
    Observation,
    RunInfo,
    TimedLock,
    claim_of,
    lock_of,
    milliseconds,
    observation_of,
    permits_of,
    run_of,
    timed_of,
    tokens_of,
)

T = TypeVar("T")

if sys.platform == "linux":

    def now() -> float:
        """Seconds on a clock that goes on while the machine sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:

    def now() -> float:
        """Seconds on a clock that goes on while the machine sleeps."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)


_logger = logging.getLogger("holdfast")

_ROUNDING = 0.001  # the server rounds to milliseconds
_LEAST_PAUSE = 0.05
_RELEASE_LIMIT = 30.0


class AsyncHeld:
    """What is held until its end: a lock, or a run.

    This process judges by itself for how long that is certain. It asks the server every third of the time that is left,
    and counts the answer from the start of its question, so that nothing that comes late makes that time longer.
    """

    def __init__(self, client: AsyncClient, name: str, token: int) -> None:
        self.name = name
        self.token = token
        """The fencing token, for what is written to."""
        self.lost = asyncio.Event()
        """Set when it is lost."""
        self._client = client
        self._pid = os.getpid()
        self._until = 0.0
        self._error: LockLost | None = None
        self._ending = False  # this process has asked for the end
        self._ended = False
        self._callbacks: list[Callable[[LockLost], object]] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def cause(self) -> str | None:
        """Why it is lost, or None."""
        return self._error.cause if self._error else None

    def remaining(self) -> float:
        """For how many seconds it is certainly held, if nothing is renewed any more."""
        if self._ended or self._error or self._pid != os.getpid():
            return 0.0
        return max(0.0, self._until - now())

    def valid(self) -> bool:
        """Whether it is certainly held. This asks nobody: see check."""
        return self.remaining() > 0

    def on_lost(self, callback: Callable[[LockLost], object]) -> None:
        """Has callback called once when it is lost; at once if it is lost already."""
        if self._error:
            callback(self._error)
        else:
            self._callbacks.append(callback)

    async def check(self) -> float:
        """Asks the server, before an act that cannot be undone, and returns for how many seconds it is held for certain.

        Raises LockLost if it is not held any more.
        """
        self._refuse_if_over()
        start = now()
        try:
            async with asyncio.timeout(self.remaining()):
                left = await self._ask(self.remaining())
        except TimeoutError:
            self._lose(lost("expired", "the server did not answer until the lease had ended"))
        except LockLost as e:
            self._lose(e)
        except Released as e:
            if self._ending:
                raise
            self._lose(lost("disconnected", str(e)))  # the server has seen another end
        else:
            self._extend(start, left)
        self._refuse_if_over()
        return self.remaining()

    async def _ask(self, limit: float) -> float:
        raise NotImplementedError

    def _extend(self, start: float, left: float) -> None:
        self._until = max(self._until, start + left - _ROUNDING)

    def _refuse_if_over(self) -> None:
        if self._pid != os.getpid():
            raise lost("forked", "the process that was forked holds nothing: its parent does")
        if not self._error and not self._ended and self.remaining() <= 0:
            self._lose(lost("expired", "the lease has ended: this process, the server or the network was stopped"))
        if self._error:
            raise LockLost(str(self._error), self._error.problem)
        if self._ended:
            raise Released(f"{self.name} was released before")

    def _lose(self, error: LockLost) -> None:
        if self._error or self._ended:
            return
        self._error = error
        self.lost.set()
        for callback in self._callbacks:
            try:
                callback(error)
            except Exception:  # it must not hide the loss from others
                _logger.exception("a callback of on_lost has failed")

    async def _keep(self) -> None:
        """Asks again and again, until it is lost."""
        while self.valid():
            await asyncio.sleep(max(self.remaining() / 3, min(_LEAST_PAUSE, self.remaining())))
            try:
                await self.check()
            except LockLost:
                return
            except HoldfastError:
                pass  # until the time is over
        if not self._ended:
            self._lose(lost("expired", "the lease has ended: this process, the server or the network was stopped"))

    def _start(self, *work: Coroutine[Any, Any, None]) -> None:
        self._client._held.add(self)
        self._tasks = [asyncio.create_task(w) for w in work]

    def _stop(self) -> None:
        self._client._held.discard(self)
        for task in self._tasks:
            task.cancel()


class AsyncLease(AsyncHeld):
    """A lock that is held. The end of its block releases it, and raises LockLost if it was lost before."""

    def __init__(self, client: AsyncClient, server: Server, stream: Stream, acquired: Mapping[str, Any]) -> None:
        super().__init__(client, str(acquired["lock"]), int(acquired["token"]))
        self.kind = str(acquired["kind"])
        self.owner = str(acquired["owner"])
        self.ttl = float(acquired["ttl_ms"]) / 1000
        self.permits = permits_of(acquired)
        """Which permits of a semaphore this is: numbers below the limit that no other holder has. Empty if they have none."""
        self.tokens = tokens_of(acquired)
        """The token of each lock by its name, if there are several."""
        self.release_requested = asyncio.Event()
        """Set when somebody asks for the lock. It stays held."""
        self._server, self._stream = server, stream
        self._hold = "/v1/holds/" + str(acquired["hold"])

    async def _ask(self, limit: float) -> float:
        answer = await self._server.call("POST", self._hold + "/check", limit=limit)
        if answer.get("release_requested"):
            self.release_requested.set()
        return float(answer["remaining_ms"]) / 1000

    async def _read(self) -> None:
        """Reads lines. They may be old: so they can end the lease, and never make it longer."""
        try:
            while line := await self._stream.next():
                event = line.get("event")
                if event == "release_requested":
                    self.release_requested.set()
                elif event == "lost":
                    self._lose(lost(str(line.get("cause")), str(line.get("message")), line.get("lock")))
                elif event in ("released", "detached"):
                    return  # as this process has asked for
                elif event == "failed":
                    self._lose(lost("gone", str(error_of(line))))
            self._lose(lost("disconnected", "the server has ended the hold"))
        except StoreUnavailable as e:
            self._lose(lost("disconnected", str(e)))

    async def release(self) -> None:
        """Releases the lock. Raises LockLost if it was lost before, and Released if it was released before."""
        try:
            self._refuse_if_over()
        except LockLost:
            self._end_lost()
            raise
        self._end()
        await self._client._finish(self._release())

    def _end(self) -> None:
        self._ended = True
        self._stop()

    def _end_lost(self) -> None:
        """Tells the server, if it can be told, that the work has ended."""
        if self._pid == os.getpid() and not self._ended:
            self._end()
            self._client._finish_later(self._release_lost())

    def _lose_at_end(self, error: LockLost) -> LockLost:
        self._ended = False
        self._lose(error)
        self._ended = True
        return error

    async def _release_lost(self) -> None:
        try:
            await self._server.call("POST", self._hold + "/release", limit=5)
        except HoldfastError:
            pass
        finally:
            self._stream.close()

    async def _release(self) -> None:
        tried = False
        try:
            while True:
                try:
                    await self._server.call("POST", self._hold + "/release", limit=_RELEASE_LIMIT, again=False)
                    return
                except Released as e:
                    if tried:
                        return  # by the request whose answer was lost
                    raise self._lose_at_end(lost("disconnected", str(e))) from e  # the server has seen another end
                except LockLost as e:
                    raise self._lose_at_end(e) from None
                except StoreUnavailable as e:
                    if tried or isinstance(e.__cause__, TimeoutError):
                        raise Uncertain(f"the release of {self.name} was not confirmed: {e}") from e
                    tried = True
        finally:
            self._stream.close()

    async def detach(self) -> TimedLock:
        """Leaves the lock held for its TTL without this process. Whoever has the handle can renew and release it."""
        self._refuse_if_over()
        self._ending = True
        try:
            answer = await self._server.call("POST", self._hold + "/detach", again=False)
        finally:
            self._ending = False
        self._end()
        self._stream.close()
        return timed_of(answer)

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended and not self._error:
            return
        try:
            await self.release()
        except HoldfastError as e:
            if error is None:
                raise
            error.add_note(f"and the lock {self.name}: {e}")


class AsyncLock:
    """A lock as a program wants to hold it. ``async with lock as lease`` waits for it, and releases it at the end."""

    def __init__(self, client: AsyncClient, path: str, name: str, body: dict[str, Any], wait: Duration | None) -> None:
        self._client, self._path, self._query, self._body = client, path, f"?name={_quoted('a name', name)}", body
        if wait is not None:
            body["wait_ms"] = milliseconds("wait", wait)
        self._in_use = False
        self._lease: AsyncLease | None = None

    async def acquire(self) -> AsyncLease:
        """Waits for the lock."""
        start = now()
        server, stream = await self._client._stream("POST", self._path + self._query, self._body, SILENCE)
        try:
            while True:
                line = await stream.next(SILENCE)
                if line is None:
                    raise StoreUnavailable("the server has ended the wait")
                if line["event"] == "acquired":
                    return await self._begin(server, stream, start, line)
                if line["event"] not in ("waiting", "heartbeat"):
                    raise error_of(line)
        except BaseException:
            stream.close()
            raise

    async def _begin(self, server: Server, stream: Stream, start: float, line: Mapping[str, Any]) -> AsyncLease:
        lease = AsyncLease(self._client, server, stream, line)
        left = float(line["remaining_ms"]) / 1000
        lease._extend(start, left)
        if lease.remaining() < left * 2 / 3:  # after a wait, nobody can tell how old the line is
            start = now()
            lease._extend(start, await lease._ask(SILENCE))
        lease._start(lease._read(), lease._keep())
        return lease

    async def acquire_timed(self, *, idempotency_key: str | None = None) -> TimedLock:
        """Acquires the lock for its ttl, without a connection: nobody renews it, unless Client.renew does.

        ``idempotency_key``: a text of your own for this lock. If the answer is lost, the same call with the same key gets the
        lock that the first one was granted.
        """
        body = dict(self._body)
        if idempotency_key is not None and not (idempotency_key.isascii() and idempotency_key.isprintable()):
            raise Invalid("an idempotency_key must be printable ASCII characters")
        if "ttl_ms" not in body:
            raise Invalid("a timed lock needs a ttl")
        verb, wait, limit = "acquire", body.get("wait_ms"), None
        if wait == 0:
            verb = "try"
            del body["wait_ms"]
        if wait is not None:
            limit = wait / 1000 + SILENCE
        _, stream = await self._client._stream("POST", f"/v1/locks/-/{verb}{self._query}", body, limit, idempotency_key)
        try:
            answer = await stream.next(SILENCE)
        finally:
            stream.close()
        if answer is None:
            raise StoreUnavailable("the server has not answered")
        return timed_of(answer)

    async def __aenter__(self) -> AsyncLease:
        if self._in_use:
            raise Invalid("this object is in use: make one for each block, or call acquire")
        self._in_use = True
        try:
            self._lease = await self.acquire()
        except BaseException:
            self._in_use = False
            raise
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, self._lease = self._lease, None
        self._in_use = False
        assert lease is not None
        await lease.__aexit__(kind, error, trace)


class AsyncElection:
    """An election: one of its candidates leads."""

    def __init__(self, client: AsyncClient, name: str, options: dict[str, Any]) -> None:
        self._client, self._name, self._options = client, name, options

    def campaign(self, *, note: str | None = None, wait: Duration | None = None) -> AsyncLock:
        """Waits to lead. ``async with election.campaign(note="10.0.0.7:80") as lease`` leads until the block ends. The
        note is what the leader publishes.
        """
        body = _options(self._options, note=note)
        return AsyncLock(self._client, "/v1/elections/-/campaign", self._name, body, wait)

    def _url(self, verb: str) -> str:
        return f"/v1/elections/-/{verb}?name={_quoted('a name', self._name)}"

    async def leader(self) -> Claim | None:
        """Who leads; None if nobody does."""
        leader = (await self._client._call("GET", self._url("leader"))).get("leader")
        return claim_of(leader) if leader else None

    async def observe(self) -> AsyncGenerator[Observation, None]:
        """Who leads, and after each change."""
        _, stream = await self._client._stream("GET", self._url("observe"), None, SILENCE)
        try:
            while line := await stream.next(SILENCE):
                if line["event"] == "failed":
                    raise error_of(line)
                if line["event"] != "heartbeat":
                    yield observation_of(line)
        finally:
            stream.close()
        raise StoreUnavailable("the server has ended the answer")


class AsyncRun(AsyncHeld):
    """A run of a key. The end of its block reports success, with ``result``; an exception reports a failure."""

    def __init__(self, client: AsyncClient, server: Server, begun: Mapping[str, Any]) -> None:
        super().__init__(client, f"{begun['ledger']}/{begun['key']}", int(begun["token"]))
        self.key = str(begun["key"])
        self.attempt = int(begun["attempt"])
        self.result: str | None = None
        """What the end of the block reports."""
        self._server = server
        self._run = "/v1/runs/" + str(begun["run"])

    async def _ask(self, limit: float) -> float:
        answer = await self._server.call("POST", self._run + "/beat", limit=limit)
        return float(answer["remaining_ms"]) / 1000

    async def succeed(self, result: str | None = None) -> None:
        """Reports success, so that the key is never run again. That works after a loss, too, unless another run began."""
        await self._report("/succeed", {} if result is None else {"result": result})

    async def fail(self, error: str = "") -> None:
        """Reports a failure, so that the key can be run again."""
        await self._report("/fail", {"error": error} if error else {})

    async def _report(self, verb: str, body: dict[str, Any]) -> None:
        if self._pid != os.getpid():
            self._refuse_if_over()
        if self._ended or self._ending:
            raise Released(f"the run of {self.name} has ended before")
        self._ending = True
        try:
            await self._client._finish(self._send_report(verb, body))
        except Invalid:
            self._ending = False
            raise  # the run goes on
        except BaseException:
            self._ended = True
            self._stop()
            raise
        self._ended = True
        self._stop()

    async def _send_report(self, verb: str, body: dict[str, Any]) -> None:
        try:
            await self._server.call("POST", self._run + verb, body, limit=_RELEASE_LIMIT, again=False)
        except LockLost as e:
            self._lose(e)
            raise
        except Released as e:  # by the server, because there were no beats
            self._lose(lost("expired", str(e)))
            raise lost("expired", str(e)) from e
        except StoreUnavailable as e:
            raise Uncertain(f"the end of the run of {self.name} was not confirmed: {e}") from e

    async def __aenter__(self) -> AsyncRun:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if error is None:
            await self.succeed(self.result)
            return
        try:
            await self.fail(f"{type(error).__name__}: {error}")
        except HoldfastError as e:
            error.add_note(f"and the run of {self.name}: {e}")


class AsyncLedger:
    """Runs each key once."""

    def __init__(self, client: AsyncClient, name: str, options: dict[str, Any]) -> None:
        self._client, self._path, self._options = client, f"/v1/ledgers/{_segment(name)}/keys", options

    async def begin(
        self, key: str, *, wait: Duration | None = None, note: str | None = None, fingerprint: str | None = None
    ) -> AsyncRun:
        """Begins the run of a key. However many callers begin, one gets it; the others get a RunRefused.

        ``wait``: how long to wait while a run is in progress. A ``fingerprint`` is that of the payload: another one gives
        Mismatch.
        """
        body = _options(self._options, note=note, fingerprint=fingerprint)
        limit = SILENCE
        if wait is not None:
            body["wait_ms"] = milliseconds("wait", wait)
            limit += body["wait_ms"] / 1000
        start = now()
        server, stream = await self._client._stream("POST", f"{self._path}/-/begin?key={_quoted('a key', key)}", body, limit)
        try:
            begun = await stream.next(SILENCE)
        finally:
            stream.close()
        if begun is None:
            raise StoreUnavailable("the server has not answered")
        run = AsyncRun(self._client, server, begun)
        left = float(begun["remaining_ms"]) / 1000
        run._extend(start, left)
        if run.remaining() < left * 2 / 3:
            start = now()
            run._extend(start, await run._ask(SILENCE))
        run._start(run._keep())
        return run

    async def history(self, key: str) -> list[RunInfo]:
        """The runs of a key in the order in which they began, with their results: the last 10,000 at most."""
        answer = await self._client._call("GET", f"{self._path}/-?limit=10000&key={_quoted('a key', key)}")
        return [run_of(r) for r in answer["runs"]]

    async def list(self, prefix: str = "") -> list[RunInfo]:
        """The last run of each key, in the order of the keys: 10,000 at most."""
        answer = await self._client._call("GET", f"{self._path}?limit=10000&prefix={_quoted('a prefix', prefix)}")
        return [run_of(r) for r in answer["runs"]]


def _segment(name: str) -> str:
    """A name as a segment of a path. These names cannot be one."""
    if name in (".", "..", "/"):
        raise Invalid(f"a ledger cannot have the name {name!r}")
    return _quoted("a name", name)


def _quoted(what: str, text: str) -> str:
    """A text as a part of a URL."""
    if not isinstance(text, str):
        raise Invalid(f"{what} must be a str, such as 'nightly', not {text!r}")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as e:
        raise Invalid(f"{what} must be text in Unicode, not {text!r}") from e


def _options(more: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    body = dict(more)
    for name, value in values.items():
        if value is None:
            continue
        if name in ("ttl", "min_hold", "max_hold", "pause", "keep"):
            body[name + "_ms"] = milliseconds(name, value)
        else:
            body[name] = value
    return body


class AsyncClient:
    """Locks of a store, by its URL, or of a server that runs."""

    def __init__(self, url: str | None, token: str | None, tls: ssl.SSLContext | None) -> None:
        if url is not None and (not isinstance(url, str) or not url):
            raise Invalid(
                f"the URL is {url!r}: connect to that of a store, such as 'redis://cache:6379', or of a server, such as "
                "'https://locks:7420', or leave it out for the store of HOLDFAST_STORE"
            )
        self._url = url
        self._remote: Address | None = None
        if url is not None and url.partition(":")[0] in ("unix", "http", "https"):
            self._remote = Address(url, token, tls)
        elif token is not None or tls is not None:
            raise Invalid("token and tls are for the URL of a server")
        self._closed = False
        self._held: set[AsyncHeld] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._engine: _engine.Engine | None = None
        self._calls: Server | None = None
        self._starting = asyncio.Lock()

    async def _server(self) -> Server:
        """The server to call. It is started, or started again, if it does not run."""
        if self._closed:
            raise Invalid("this client was closed")
        if self._pid != os.getpid():
            self._reset()
            self._held, self._background = set(), set()
        if self._remote is not None:
            self._calls = self._calls or Server(self._remote)
            return self._calls
        async with self._starting:
            if self._engine is None or not self._engine.is_alive():
                old, self._engine = self._engine, None
                if old is not None:
                    await asyncio.to_thread(_engine.leave, old)
                engine = await asyncio.to_thread(_engine.join, self._url)
                if self._closed:
                    await asyncio.to_thread(_engine.leave, engine)
                    raise Invalid("this client was closed")
                self._engine = engine
                self._calls = Server(Address("unix:" + self._engine.path, self._engine.token))
        assert self._calls is not None
        return self._calls

    async def _use(self, use: Callable[[Server], Coroutine[Any, Any, T]], again: bool = True) -> T:
        """Calls the server. That an engine has just died may be noticed first when it is called: then the next one is."""
        server = await self._server()
        try:
            return await use(server)
        except StoreUnavailable as e:
            if self._engine is None or not (isinstance(e, Unreachable) or (again and is_broken(e))):
                raise
            await asyncio.to_thread(self._engine.await_end)
            return await use(await self._server())

    async def _call(self, method: str, path: str, again: bool = True) -> dict[str, Any]:
        return await self._use(lambda server: server.call(method, path, again=again), again)

    async def _stream(
        self, method: str, path: str, body: Mapping[str, Any] | None, limit: float | None, key: str | None = None
    ) -> tuple[Server, Stream]:
        async def open_stream(server: Server) -> tuple[Server, Stream]:
            return server, await server.stream(method, path, body, limit, key)

        return await self._use(open_stream)

    def _finish_later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work to its end, also if this task is canceled meanwhile."""
        await asyncio.shield(self._finish_later(work))

    def mutex(
        self,
        name: str,
        *,
        wait: Duration | None = None,
        ttl: Duration | None = None,
        fair: bool | None = None,
        newest_only: bool | None = None,
        owner: str | None = None,
        note: str | None = None,
        min_hold: Duration | None = None,
        max_hold: Duration | None = None,
        also: Sequence[str] = (),
    ) -> AsyncLock:
        """A lock that one holder has at a time.

        ``wait``: how long to wait at most, in seconds; 0 is one attempt, and None is no limit. ``ttl``: for how long a
        holder that has died keeps the lock. ``fair``: in order of arrival among all clients. ``newest_only``: of those that
        wait with it, only the newest gets the lock, and the others raise Superseded. ``owner`` and ``note`` are shown to others.
        ``min_hold``: keeps the lock held for at least so long. ``max_hold``: ends the lease then. ``also``: names of more
        mutexes, which are acquired and held with this one, all or none.
        """
        body = _options(
            {}, ttl=ttl, fair=fair, newest_only=newest_only, owner=owner, note=note, min_hold=min_hold, max_hold=max_hold
        )
        if isinstance(also, str) or not all(isinstance(other, str) for other in also):
            raise Invalid(f"also must be a list of names, not {also!r}")
        if also:
            body["also"] = list(also)
        return self._lock(name, body, wait)

    def _lock(self, name: str, body: dict[str, Any], wait: Duration | None) -> AsyncLock:
        return AsyncLock(self, "/v1/locks/-/hold", name, body, wait)

    def reader(
        self,
        name: str,
        *,
        wait: Duration | None = None,
        ttl: Duration | None = None,
        owner: str | None = None,
        note: str | None = None,
    ) -> AsyncLock:
        """The lock of a reader: others can read at the same time. The options are those of mutex."""
        return self._lock(name, _options({"kind": "rw", "shared": True}, ttl=ttl, owner=owner, note=note), wait)

    def writer(
        self,
        name: str,
        *,
        wait: Duration | None = None,
        ttl: Duration | None = None,
        owner: str | None = None,
        note: str | None = None,
    ) -> AsyncLock:
        """The lock of a writer: nobody else reads or writes. The options are those of mutex."""
        return self._lock(name, _options({"kind": "rw"}, ttl=ttl, owner=owner, note=note), wait)

    def semaphore(
        self,
        name: str,
        limit: int,
        *,
        weight: int = 1,
        wait: Duration | None = None,
        ttl: Duration | None = None,
        owner: str | None = None,
        note: str | None = None,
    ) -> AsyncLock:
        """A lock that holders share as long as their weights together are not above limit."""
        body = _options({"kind": "semaphore", "limit": limit, "weight": weight}, ttl=ttl, owner=owner, note=note)
        return self._lock(name, body, wait)

    def election(self, name: str, *, ttl: Duration | None = None, owner: str | None = None) -> AsyncElection:
        """An election."""
        return AsyncElection(self, name, _options({}, ttl=ttl, owner=owner))

    def ledger(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        owner: str | None = None,
        max_attempts: int | None = None,
        pause: Duration | None = None,
        keep_runs: int | None = None,
        keep: Duration | None = None,
    ) -> AsyncLedger:
        """A ledger, in which each key is run once.

        ``ttl``: for how long a worker that has died keeps the key. ``max_attempts``: how many runs a key may have.
        ``pause``: the least time between two of them. ``keep_runs`` and ``keep``: how many runs, and for how long, are kept.
        """
        body = _options({}, ttl=ttl, owner=owner, max_attempts=max_attempts, pause=pause, keep_runs=keep_runs, keep=keep)
        return AsyncLedger(self, name, body)

    async def renew(self, handle: str) -> float:
        """Makes a timed lock last for its ttl from now; returns for how many seconds it is held for certain."""
        start = now()  # nobody can tell how old the answer is
        answer = await self._call("POST", f"/v1/handles/{_quoted('a handle', handle)}/renew")
        left = start + float(answer["remaining_ms"]) / 1000 - _ROUNDING - now()
        if left <= 0:
            raise lost("expired", "the answer came after the lease may have ended")
        return left

    async def release(self, handle: str) -> None:
        """Releases a timed lock."""
        await self._call("POST", f"/v1/handles/{_quoted('a handle', handle)}/release", again=False)

    async def list(self, prefix: str = "") -> list[LockInfo]:
        """The locks that are held or waited for, in the order of their names: 10,000 at most."""
        answer = await self._call("GET", f"/v1/locks?limit=10000&prefix={_quoted('a prefix', prefix)}")
        return [lock_of(v) for v in answer["locks"]]

    async def show(self, name: str) -> LockInfo:
        """Who holds a lock, and who waits for it."""
        return lock_of(await self._call("GET", f"/v1/locks/-?name={_quoted('a name', name)}"))

    async def request_release(self, name: str) -> None:
        """Asks the holder of a lock to release it. Its lease.release_requested is set then."""
        await self._call("POST", f"/v1/locks/-/request-release?name={_quoted('a name', name)}")

    async def close(self) -> None:
        """Releases what is held. Its leases are lost: end them before."""
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():
            return
        for held in list(self._held):
            held._lose(lost("closed", "the client was closed"))
            held._stop()
            if isinstance(held, AsyncLease):
                held._stream.close()
        if self._background:
            await asyncio.wait(self._background, timeout=5)
        if self._calls is not None:
            self._calls.close()
        if self._engine is not None:
            await asyncio.to_thread(_engine.leave, self._engine)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def connect(
    url: str | None = None, *, token: str | None = None, tls: ssl.SSLContext | None = None
) -> AsyncClient:
    """Uses the locks of a store, such as ``redis://cache:6379``, or of a server, such as ``https://locks:7420``.

    For a store, a holdfast command runs as a child of this process; it is started when it is needed. None is the store
    of HOLDFAST_STORE. ``token`` and ``tls`` are for a server.
    """
    return AsyncClient(url, token, tls)
