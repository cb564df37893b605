"""Locks, elections and runs that several processes share, on a store that you have.

    with holdfast.connect("redis://cache:6379") as locks:
        with locks.mutex("nightly", wait=10) as lease:
            report(token=lease.token)

``holdfast.aio`` is the same for asyncio.
"""

from . import aio
from ._errors import (
    AlreadySucceeded,
    AttemptsUsed,
    Corrupt,
    Denied,
    EngineMissing,
    HoldfastError,
    InProgress,
    Invalid,
    LockHeld,
    LockLost,
    LockTimeout,
    Mismatch,
    NotAllowed,
    QueueFull,
    Released,
    RunRefused,
    StoreUnavailable,
    Superseded,
    TooSoon,
    Uncertain,
    Unsupported,
)
from ._sync import Client, Election, Lease, Ledger, Lock, Run, connect
from ._values import Claim, Duration, LockInfo, Observation, RunInfo, TimedLock

__all__ = [
    "AlreadySucceeded",
    "AttemptsUsed",
    "Claim",
    "Client",
    "Corrupt",
    "Denied",
    "Duration",
    "Election",
    "EngineMissing",
    "HoldfastError",
    "InProgress",
    "Invalid",
    "Lease",
    "Ledger",
    "Lock",
    "LockHeld",
    "LockInfo",
    "LockLost",
    "LockTimeout",
    "Mismatch",
    "NotAllowed",
    "Observation",
    "QueueFull",
    "Released",
    "Run",
    "RunInfo",
    "RunRefused",
    "StoreUnavailable",
    "Superseded",
    "TimedLock",
    "TooSoon",
    "Uncertain",
    "Unsupported",
    "aio",
    "connect",
]
