"""What can go wrong. Each code of the API is one class; programs decide by class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._values import Claim, RunInfo, claims_of, run_of, seconds_of


class HoldfastError(Exception):
    """Base of all errors of this package.

    ``code`` is that of docs/serve.md, and empty if this package has found the error itself.
    """

    def __init__(self, message: str, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.problem: Mapping[str, Any] = problem or {}
        self.code: str = str(self.problem.get("code", ""))


class LockHeld(HoldfastError):
    """The lock is held, and the caller does not wait. ``holders`` says by whom, as far as that is known."""

    @property
    def holders(self) -> list[Claim]:
        return claims_of(self.problem.get("holders"))

    @property
    def waiting(self) -> int:
        """How many claims wait."""
        return int(self.problem.get("waiting", 0))


class LockTimeout(HoldfastError):
    """The lock was not granted within ``wait``. ``holders`` says who held it at the end, as far as that is known."""

    @property
    def holders(self) -> list[Claim]:
        return claims_of(self.problem.get("holders"))


class LockLost(HoldfastError):
    """The lock or the run has ended before its holder has ended it: somebody else may have it. ``cause`` says why."""

    @property
    def cause(self) -> str:
        return str(self.problem.get("cause", "gone"))

    @property
    def lock(self) -> str | None:
        """Which of several locks it is about, if it is about one."""
        return self.problem.get("lock")


class Released(HoldfastError):
    """The holder has released the lock, or ended the run, before."""


class Mismatch(HoldfastError):
    """The name is in use with another kind or limit, or the key with another fingerprint or other options."""


class Invalid(HoldfastError, ValueError):
    """An argument is wrong; the text says which one."""


class Unsupported(HoldfastError):
    """The store cannot do this."""


class NotAllowed(HoldfastError):
    """The server does not know the token, or the caller does not have the right."""


class Denied(HoldfastError):
    """The store refuses the server."""


class Corrupt(HoldfastError):
    """The store holds what cannot be understood."""


class QueueFull(HoldfastError):
    """The lock has as many claims as its store allows."""


class Superseded(HoldfastError):
    """A newer claim with ``newest_only`` waits, so this one has given up."""


class Uncertain(HoldfastError):
    """The outcome is not known. What may be left is cleaned up in the background, or expires with its TTL."""


class StoreUnavailable(HoldfastError):
    """The store, or the server, cannot be reached or does not answer."""


class EngineMissing(HoldfastError):
    """There is no holdfast command that could be started."""


class RunRefused(HoldfastError):
    """No run of the key began. ``run`` is its last one, if the caller may see it."""

    @property
    def run(self) -> RunInfo | None:
        run = self.problem.get("run")
        return run_of(run) if run else None


class AlreadySucceeded(RunRefused):
    """The key has succeeded before, so it is never run again."""


class InProgress(RunRefused):
    """A run of the key is in progress."""


class TooSoon(RunRefused):
    """The pause since the last run has not passed; ``retry_after`` says how many seconds are left."""

    @property
    def retry_after(self) -> float:
        return seconds_of(self.problem.get("retry_after_ms")) or 0.0


class AttemptsUsed(RunRefused):
    """The key has had as many runs as it may have."""


_BY_CODE: dict[str, type[HoldfastError]] = {
    "held": LockHeld,
    "timeout": LockTimeout,
    "lost": LockLost,
    "released": Released,
    "not-found": LockLost,
    "mismatch": Mismatch,
    "key-reused": Mismatch,
    "invalid": Invalid,
    "not-acquired": Invalid,
    "unsupported": Unsupported,
    "unauthorized": NotAllowed,
    "forbidden": NotAllowed,
    "break-not-allowed": NotAllowed,
    "host-refused": NotAllowed,
    "origin-refused": NotAllowed,
    "denied": Denied,
    "corrupt": Corrupt,
    "queue-full": QueueFull,
    "superseded": Superseded,
    "uncertain": Uncertain,
    "succeeded": AlreadySucceeded,
    "in-progress": InProgress,
    "too-soon": TooSoon,
    "attempts-used": AttemptsUsed,
}

# Of these codes another attempt may succeed.
_TEMPORARY = {"store-error", "rate-limited", "too-many-streams", "shutting-down"}


def error_of(problem: Mapping[str, Any]) -> HoldfastError:
    """The error of a problem that the server has answered with, or of the last line of a stream."""
    code = str(problem.get("code", ""))
    text = problem.get("detail") or problem.get("message") or problem.get("title") or "the server has refused"
    kind = _BY_CODE.get(code, StoreUnavailable if code in _TEMPORARY else HoldfastError)
    return kind(str(text), problem)


def lost(cause: str, message: str, lock: str | None = None) -> LockLost:
    return LockLost(message, {"code": "lost", "cause": cause, "lock": lock})
