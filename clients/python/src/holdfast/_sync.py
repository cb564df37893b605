"""The client for programs without asyncio. It runs the other one in a thread of its own, one per process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ._core import AsyncClient, AsyncElection, AsyncHeld, AsyncLease, AsyncLedger, AsyncLock, AsyncRun
from ._errors import Invalid, LockLost
from ._http import forget_connections
from ._values import Claim, Duration, LockInfo, Observation, RunInfo, TimedLock

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_undoing: set[asyncio.Task[None]] = set()
_inherited: list[asyncio.AbstractEventLoop] = []  # of the process that this one was forked from: never touched


def _the_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="holdfast", daemon=True).start()
        return _loop


def _do_later(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Starts the work, in the thread of the loop."""
    _undoing.add(task := loop.create_task(work))
    task.add_done_callback(_undoing.discard)


def _run(work: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, None]] | None = None) -> T:
    """Does the work in the thread, and waits for it. What interrupts the wait, such as KeyboardInterrupt, ends the work, or
    undoes what was done meanwhile.
    """
    loop = _the_loop()
    with contextlib.suppress(RuntimeError):  # no loop runs in this thread
        if asyncio.get_running_loop() is loop:
            work.close()
            raise Invalid("a callback of holdfast must not wait: do this in another thread")
    done: concurrent.futures.Future[T] = concurrent.futures.Future()
    tasks: list[asyncio.Task[T]] = []
    given_up = False

    def start() -> None:
        tasks.append(loop.create_task(work))
        tasks[0].add_done_callback(finish)

    def finish(task: asyncio.Task[T]) -> None:
        if given_up:
            undo_all(task)
        elif task.cancelled():
            done.set_exception(asyncio.CancelledError())
        elif error := task.exception():
            done.set_exception(error)
        else:
            done.set_result(task.result())

    def undo_all(task: asyncio.Task[T]) -> None:
        if undo is not None and not task.cancelled() and task.exception() is None:
            _do_later(loop, undo(task.result()))

    def give_up() -> None:
        nonlocal given_up
        given_up = True
        if not tasks:
            work.close()
        elif done.done():  # finish was called before, and its result reaches nobody
            undo_all(tasks[0])
        else:
            tasks[0].cancel()

    try:
        loop.call_soon_threadsafe(start)
        return done.result()
    except BaseException:
        if not done.done() or done.exception() is None:
            loop.call_soon_threadsafe(give_up)
        raise


def _after_fork_in_child() -> None:
    global _lock, _loop
    _lock = threading.Lock()
    if _loop is not None:
        _inherited.append(_loop)
        _loop = None
        forget_connections()


os.register_at_fork(before=lambda: _lock.acquire(), after_in_parent=lambda: _lock.release(), after_in_child=_after_fork_in_child)


class _Held:
    """What is held until its end: a lock, or a run. Any thread may use it."""

    def __init__(self, held: AsyncHeld) -> None:
        self.name = held.name
        self.token = held.token
        """The fencing token, for what is written to."""
        self.lost = threading.Event()
        """Set when it is lost."""
        self._held = held
        held.on_lost(lambda _: self.lost.set())

    @property
    def cause(self) -> str | None:
        """Why it is lost, or None."""
        return self._held.cause

    def remaining(self) -> float:
        """For how many seconds it is certainly held, if nothing is renewed any more."""
        return self._held.remaining()

    def valid(self) -> bool:
        """Whether it is certainly held. This asks nobody: see check."""
        return self._held.valid()

    def on_lost(self, callback: Callable[[LockLost], object]) -> None:
        """Has callback called once when it is lost; at once if it is lost already. It is called in another thread, in
        which it must not wait.
        """

        async def add() -> None:
            self._held.on_lost(callback)

        _run(add())

    def check(self) -> float:
        """Asks the server, before an act that cannot be undone, and returns for how many seconds it is held for certain.

        Raises LockLost if it is not held any more.
        """
        self._refuse_if_forked()
        return _run(self._held.check())

    def _refuse_if_forked(self) -> None:
        if self._held._pid != os.getpid():
            self._held._refuse_if_over()


class Lease(_Held):
    """A lock that is held. The end of its block releases it, and raises LockLost if it was lost before."""

    def __init__(self, lease: AsyncLease) -> None:
        super().__init__(lease)
        self._lease = lease
        self.kind, self.owner, self.ttl = lease.kind, lease.owner, lease.ttl
        self.permits = lease.permits
        """Which permits of a semaphore this is: numbers below the limit that no other holder has. Empty if they have none."""
        self.tokens = lease.tokens
        """The token of each lock by its name, if there are several."""

    def release_requested(self) -> bool:
        """Whether somebody has asked for the lock. It stays held."""
        return self._lease.release_requested.is_set()

    def wait_release_requested(self, timeout: float | None = None) -> bool:
        """Waits until somebody asks for the lock, for timeout seconds at most."""

        async def wait() -> bool:
            try:
                await asyncio.wait_for(self._lease.release_requested.wait(), timeout)
            except TimeoutError:
                return False
            return True

        return _run(wait())

    def release(self) -> None:
        """Releases the lock. Raises LockLost if it was lost before, and Released if it was released before."""
        self._refuse_if_forked()
        _run(self._lease.release())

    def detach(self) -> TimedLock:
        """Leaves the lock held for its TTL without this process. Whoever has the handle can renew and release it."""
        self._refuse_if_forked()
        return _run(self._lease.detach())

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held._pid != os.getpid() and error is not None:
            return
        self._refuse_if_forked()
        _run(self._lease.__aexit__(kind, error, trace))


class Lock:
    """A lock as a program wants to hold it. ``with lock as lease`` waits for it, and releases it at the end."""

    def __init__(self, lock: AsyncLock) -> None:
        self._lock = lock
        self._in_use = threading.Lock()
        self._lease: Lease | None = None

    def acquire(self) -> Lease:
        """Waits for the lock."""

        async def acquire() -> Lease:
            return Lease(await self._lock.acquire())

        return _run(acquire(), lambda lease: lease._lease.release())

    def acquire_timed(self, *, idempotency_key: str | None = None) -> TimedLock:
        """Acquires the lock for its ttl, without a connection: nobody renews it, unless Client.renew does.

        ``idempotency_key``: a text of your own for this lock. If the answer is lost, the same call with the same key gets the
        lock that the first one was granted.
        """
        return _run(self._lock.acquire_timed(idempotency_key=idempotency_key))

    def __enter__(self) -> Lease:
        if not self._in_use.acquire(blocking=False):
            raise Invalid("this object is in use: make one for each block, or call acquire")
        try:
            self._lease = self.acquire()
        except BaseException:
            self._in_use.release()
            raise
        return self._lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, self._lease = self._lease, None
        self._in_use.release()
        assert lease is not None
        lease.__exit__(kind, error, trace)


class Election:
    """An election: one of its candidates leads."""

    def __init__(self, election: AsyncElection) -> None:
        self._election = election

    def campaign(self, *, note: str | None = None, wait: Duration | None = None) -> Lock:
        """Waits to lead. ``with election.campaign(note="10.0.0.7:80") as lease`` leads until the block ends. The note is
        what the leader publishes.
        """
        return Lock(self._election.campaign(note=note, wait=wait))

    def leader(self) -> Claim | None:
        """Who leads; None if nobody does."""
        return _run(self._election.leader())

    def observe(self) -> Iterator[Observation]:
        """Who leads, and after each change."""
        changes = self._election.observe()
        loop = _the_loop()

        async def next_change() -> Observation:
            return await anext(changes)

        async def end() -> None:
            with contextlib.suppress(RuntimeError):  # an interrupted next_change ends it itself
                await changes.aclose()

        try:
            while True:
                yield _run(next_change())
        finally:  # also at the end of the process, when the thread has stopped: so this must not wait
            if loop is _loop:
                loop.call_soon_threadsafe(lambda: _do_later(loop, end()))


class Run(_Held):
    """A run of a key. The end of its block reports success, with ``result``; an exception reports a failure."""

    def __init__(self, run: AsyncRun) -> None:
        super().__init__(run)
        self._run = run
        self.key, self.attempt = run.key, run.attempt
        self.result: str | None = None
        """What the end of the block reports."""

    def succeed(self, result: str | None = None) -> None:
        """Reports success, so that the key is never run again. That works after a loss, too, unless another run began."""
        self._refuse_if_forked()
        _run(self._run.succeed(result))

    def fail(self, error: str = "") -> None:
        """Reports a failure, so that the key can be run again."""
        self._refuse_if_forked()
        _run(self._run.fail(error))

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held._pid != os.getpid() and error is not None:
            return
        self._refuse_if_forked()
        self._run.result = self.result
        _run(self._run.__aexit__(kind, error, trace))


class Ledger:
    """Runs each key once."""

    def __init__(self, ledger: AsyncLedger) -> None:
        self._ledger = ledger

    def begin(
        self, key: str, *, wait: Duration | None = None, note: str | None = None, fingerprint: str | None = None
    ) -> Run:
        """Begins the run of a key. However many callers begin, one gets it; the others get a RunRefused.

        ``wait``: how long to wait while a run is in progress. A ``fingerprint`` is that of the payload: another one gives
        Mismatch.
        """

        async def begin() -> Run:
            return Run(await self._ledger.begin(key, wait=wait, note=note, fingerprint=fingerprint))

        return _run(begin(), lambda run: run._run.fail("the wait for it was interrupted"))

    def history(self, key: str) -> list[RunInfo]:
        """The runs of a key in the order in which they began, with their results: the last 10,000 at most."""
        return _run(self._ledger.history(key))

    def list(self, prefix: str = "") -> list[RunInfo]:
        """The last run of each key, in the order of the keys: 10,000 at most."""
        return _run(self._ledger.list(prefix))


class Client:
    """Locks of a store, by its URL, or of a server that runs. Any thread may use it."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

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
    ) -> Lock:
        """A lock that one holder has at a time.

        ``wait``: how long to wait at most, in seconds; 0 is one attempt, and None is no limit. ``ttl``: for how long a
        holder that has died keeps the lock. ``fair``: in order of arrival among all clients. ``newest_only``: of those that
        wait with it, only the newest gets the lock, and the others raise Superseded. ``owner`` and ``note`` are shown to others.
        ``min_hold``: keeps the lock held for at least so long. ``max_hold``: ends the lease then. ``also``: names of more
        mutexes, which are acquired and held with this one, all or none.
        """
        return Lock(
            self._client.mutex(
                name,
                wait=wait,
                ttl=ttl,
                fair=fair,
                newest_only=newest_only,
                owner=owner,
                note=note,
                min_hold=min_hold,
                max_hold=max_hold,
                also=also,
            )
        )

    def reader(
        self,
        name: str,
        *,
        wait: Duration | None = None,
        ttl: Duration | None = None,
        owner: str | None = None,
        note: str | None = None,
    ) -> Lock:
        """The lock of a reader: others can read at the same time. The options are those of mutex."""
        return Lock(self._client.reader(name, wait=wait, ttl=ttl, owner=owner, note=note))

    def writer(
        self,
        name: str,
        *,
        wait: Duration | None = None,
        ttl: Duration | None = None,
        owner: str | None = None,
        note: str | None = None,
    ) -> Lock:
        """The lock of a writer: nobody else reads or writes. The options are those of mutex."""
        return Lock(self._client.writer(name, wait=wait, ttl=ttl, owner=owner, note=note))

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
    ) -> Lock:
        """A lock that holders share as long as their weights together are not above limit."""
        return Lock(
            self._client.semaphore(name, limit, weight=weight, wait=wait, ttl=ttl, owner=owner, note=note)
        )

    def election(self, name: str, *, ttl: Duration | None = None, owner: str | None = None) -> Election:
        """An election."""
        return Election(self._client.election(name, ttl=ttl, owner=owner))

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
    ) -> Ledger:
        """A ledger, in which each key is run once.

        ``ttl``: for how long a worker that has died keeps the key. ``max_attempts``: how many runs a key may have.
        ``pause``: the least time between two of them. ``keep_runs`` and ``keep``: how many runs, and for how long, are kept.
        """
        return Ledger(
            self._client.ledger(
                name, ttl=ttl, owner=owner, max_attempts=max_attempts, pause=pause, keep_runs=keep_runs, keep=keep
            )
        )

    def renew(self, handle: str) -> float:
        """Makes a timed lock last for its ttl from now; returns for how many seconds it is held for certain."""
        return _run(self._client.renew(handle))

    def release(self, handle: str) -> None:
        """Releases a timed lock."""
        _run(self._client.release(handle))

    def list(self, prefix: str = "") -> list[LockInfo]:
        """The locks that are held or waited for, in the order of their names: 10,000 at most."""
        return _run(self._client.list(prefix))

    def show(self, name: str) -> LockInfo:
        """Who holds a lock, and who waits for it."""
        return _run(self._client.show(name))

    def request_release(self, name: str) -> None:
        """Asks the holder of a lock to release it."""
        _run(self._client.request_release(name))

    def close(self) -> None:
        """Releases what is held. Its leases are lost: end them before."""
        _run(self._client.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def connect(url: str | None = None, *, token: str | None = None, tls: ssl.SSLContext | None = None) -> Client:
    """Uses the locks of a store, such as ``redis://cache:6379``, or of a server, such as ``https://locks:7420``.

    For a store, a holdfast command runs as a child of this process; it is started when it is needed. None is the store
    of HOLDFAST_STORE. ``token`` and ``tls`` are for a server.
    """
    return Client(AsyncClient(url, token, tls))
