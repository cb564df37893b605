"""The engine: a child process, ``holdfast serve``, for a store that this process uses.

There is one per process and store. It ends at the end of its standard input, however this process ends, and releases
what this process held. A process that was forked starts one of its own: it closes its copy of the pipe, so that the
engine of its parent ends with its parent.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import threading
from pathlib import Path
from typing import IO

from ._errors import EngineMissing, HoldfastError, Invalid, StoreUnavailable

_START_LIMIT = 60.0  # seconds; the engine itself gives up sooner if the store does not answer
_END_LIMIT = 5.0
_EXIT_USAGE = 64


def find_command() -> str:
    """The holdfast command: of HOLDFAST_BIN, of the PATH, or of the package holdfast-engine."""
    named = os.environ.get("HOLDFAST_BIN")
    if named:
        return named
    found = shutil.which("holdfast")
    if found:
        return found
    spec = importlib.util.find_spec("holdfast_engine")
    where = "the package holdfast-engine is not installed"
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "bin" / "holdfast"
        if os.access(path, os.X_OK):
            return str(path)
        where = f"{path}, of the package holdfast-engine, " + (
            "cannot be executed: its file system may be mounted noexec" if path.exists() else "was removed"
        )
    raise EngineMissing(
        "there is no holdfast command to start: HOLDFAST_BIN is not set, no directory of PATH has one, and "
        f"{where}. Set HOLDFAST_BIN to the path of the command, or put the command into a directory of PATH, or connect to "
        "the URL of a server (https: or unix:), which needs none. The package holdfast-engine has it, too"
    )


class Engine:
    """A child process, ready to be called on the unix socket ``path`` with ``token``."""

    def __init__(self, store: str | None) -> None:
        self.store, self.users = store, 0
        self.token = secrets.token_hex(32)
        environment = dict(os.environ)
        if store is not None:
            environment["HOLDFAST_STORE"] = store  # arguments can be read by other users
        command = find_command()
        try:
            self._process = subprocess.Popen(
                [command, "serve", "--json", "--exit-with-stdin", "--rate", "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                bufsize=0,
            )
        except OSError as e:
            raise EngineMissing(f"{command} cannot be started: {e.strerror}") from e
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._command = command
        self._messages: collections.deque[str] = collections.deque(maxlen=20)
        self._reader = threading.Thread(target=self._read_messages, args=(self._process.stderr,), daemon=True)
        self._reader.start()
        self.path = ""

    def await_start(self) -> None:
        """Waits until the engine can be called. That takes long if its store does not answer."""
        assert self._process.stdin and self._process.stdout
        killer = threading.Timer(_START_LIMIT, self._process.kill)
        killer.daemon = True
        killer.start()
        try:
            self._process.stdin.write(self.token.encode() + b"\n")
            record = _read_line(self._process.stdout)
        except OSError:
            record = b""
        except BaseException:
            self._process.kill()
            self._end()
            raise
        finally:
            killer.cancel()
        if not record:
            raise self._start_error()
        listen = str(json.loads(record)["listen"])
        self.path = listen.removeprefix("unix:")

    def _start_error(self) -> HoldfastError:
        code = self._end()
        said = " ".join(line.partition("holdfast: ")[2] or line for line in self._messages)
        if self.store is not None:
            said = said.replace("from HOLDFAST_STORE", "from connect")  # which has set it
        text = said or f"{self._command} has ended with {code}"
        return Invalid(text) if code == _EXIT_USAGE else StoreUnavailable(text)

    def _read_messages(self, stderr: IO[bytes]) -> None:
        for line in stderr:  # to the end, or the engine would block
            self._messages.append(line.decode(errors="replace").strip())

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def await_end(self) -> None:
        """Waits until the engine has ended, if it is about to. If its socket was removed, it is killed.

        What it held stays held for its TTL then, since the holders may be working. An engine that ends by itself
        would release it.
        """
        if not os.path.exists(self.path):
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_LIMIT)

    def stop(self) -> None:
        """Ends the engine. It releases what is still held."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(_END_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._end()

    def _end(self) -> int:
        """Cleans up after the engine, which has ended or will at once."""
        code = self._process.wait()
        self._reader.join(_END_LIMIT)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe
            pipe.close()
        return code

    def forget(self, nothing: int) -> None:
        """Replaces what a forked process has inherited, so that closing it later closes nothing else."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None and not pipe.closed:
                os.dup2(nothing, pipe.fileno(), inheritable=False)
        self._process.returncode = 0  # not a child of this process


def _read_line(stdout: IO[bytes]) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = stdout.read(4096)
        if not part:
            return b""
        line += part
    return line


_lock = threading.Lock()  # is held for moments only, since a fork waits for it
_engines: dict[str | None, Engine] = {}  # those that can be called
_all: set[Engine] = set()  # those that have a process
_starts: dict[str | None, threading.Lock] = {}


def join(store: str | None) -> Engine:
    """The engine of a store, which is started if it does not run."""
    with _lock:
        start = _starts.setdefault(store, threading.Lock())
    with start:
        with _lock:
            engine = _engines.get(store)
            if engine is not None and engine.is_alive():
                engine.users += 1
                return engine
            engine = Engine(store)
            _all.add(engine)
        try:
            engine.await_start()
        except BaseException:
            _all.discard(engine)
            raise
        with _lock:
            _engines[store] = engine
            engine.users += 1
        return engine


def leave(engine: Engine) -> None:
    """Ends the engine when nobody uses it any more."""
    with _lock:
        engine.users -= 1
        if engine.users > 0:
            return
        if _engines.get(engine.store) is engine:
            del _engines[engine.store]
    engine.stop()
    _all.discard(engine)


def _before_fork() -> None:
    _lock.acquire()  # so that the child knows all engines


def _after_fork_in_parent() -> None:
    _lock.release()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    nothing = os.open(os.devnull, os.O_RDWR)
    for engine in _all:
        engine.forget(nothing)
    os.close(nothing)
    for known in (_engines, _all, _starts):
        known.clear()


def _at_exit() -> None:
    for engine in list(_all):
        engine.users = 0
        engine.stop()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
atexit.register(_at_exit)
