"""What the server tells of locks and runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

Duration: TypeAlias = float | timedelta
"""Seconds, or a timedelta."""


@dataclass(frozen=True)
class Claim:
    """One claim on a lock, of a holder or of a waiter."""

    owner: str
    note: str
    weight: int
    ref: str
    token: int | None = None
    since: datetime | None = None
    ttl: float | None = None
    remaining: float | None = None
    broken: bool = False
    detached: bool = False
    foreign: bool = False
    release_requested: bool = False


@dataclass(frozen=True)
class LockInfo:
    """A lock as it is now. ``kind`` is empty if nobody uses it."""

    name: str
    kind: str
    limit: int | None
    token: int | None
    holders: list[Claim] = field(default_factory=list)
    waiters: list[Claim] = field(default_factory=list)


@dataclass(frozen=True)
class RunInfo:
    """One run of a key. ``state`` is started, succeeded, failed or abandoned."""

    key: str
    attempt: int
    state: str
    owner: str
    note: str
    token: int
    started: datetime
    ended: datetime | None
    error: str
    fingerprint: str
    result: str | None


@dataclass(frozen=True)
class Observation:
    """Who leads. ``leader`` is None if nobody does. While ``known`` is False the store cannot be asked."""

    leader: Claim | None
    known: bool = True


@dataclass(frozen=True)
class TimedLock:
    """A lock that is held for its TTL without a connection. Whoever has ``handle`` can renew and release it.

    ``tokens`` has the token of each lock by its name, if there are several. ``permits`` has the numbers of a semaphore.
    """

    handle: str
    name: str
    token: int
    ttl: float
    permits: tuple[int, ...] = ()
    tokens: Mapping[str, int] = field(default_factory=dict)


def milliseconds(name: str, value: Duration) -> int:
    """A duration as the API has it. What is smaller than a millisecond, but not 0, is one."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds != seconds or seconds < 0 or seconds > 1e9:
        from ._errors import Invalid

        raise Invalid(f"{name} must be 0 or more seconds, not {value}")
    return max(1, int(seconds * 1000)) if seconds > 0 else 0


def seconds_of(ms: Any) -> float | None:
    return None if ms is None else float(ms) / 1000


def _time_of(text: Any) -> datetime | None:
    return None if text is None else datetime.fromisoformat(str(text).replace("Z", "+00:00"))


def claim_of(c: Mapping[str, Any]) -> Claim:
    return Claim(
        owner=str(c.get("owner", "")),
        note=str(c.get("note", "")),
        weight=int(c.get("weight", 1)),
        ref=str(c.get("ref", "")),
        token=c.get("token"),
        since=_time_of(c.get("since")),
        ttl=seconds_of(c.get("ttl_ms")),
        remaining=seconds_of(c.get("remaining_ms")),
        broken=bool(c.get("broken", False)),
        detached=bool(c.get("detached", False)),
        foreign=bool(c.get("foreign", False)),
        release_requested=bool(c.get("release_requested", False)),
    )


def timed_of(v: Mapping[str, Any]) -> TimedLock:
    return TimedLock(
        str(v["handle"]), str(v["lock"]), int(v["token"]), float(v["ttl_ms"]) / 1000, permits_of(v), tokens_of(v)
    )


def tokens_of(v: Mapping[str, Any]) -> dict[str, int]:
    return {str(lock["lock"]): int(lock["token"]) for lock in [v, *v.get("also", [])]}


def permits_of(v: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(n) for n in v.get("permits", []))


def claims_of(all_: Any) -> list[Claim]:
    return [claim_of(c) for c in all_ or []]


def lock_of(v: Mapping[str, Any]) -> LockInfo:
    return LockInfo(
        name=str(v["lock"]),
        kind=str(v.get("kind", "")),
        limit=v.get("limit"),
        token=v.get("token"),
        holders=claims_of(v.get("holders")),
        waiters=claims_of(v.get("waiters")),
    )


def run_of(v: Mapping[str, Any]) -> RunInfo:
    started = _time_of(v.get("started"))
    assert started is not None
    return RunInfo(
        key=str(v["key"]),
        attempt=int(v["attempt"]),
        state=str(v["state"]),
        owner=str(v.get("owner", "")),
        note=str(v.get("note", "")),
        token=int(v.get("token", 0)),
        started=started,
        ended=_time_of(v.get("ended")),
        error=str(v.get("error", "")),
        fingerprint=str(v.get("fingerprint", "")),
        result=v.get("result"),
    )


def observation_of(line: Mapping[str, Any]) -> Observation:
    leader = line.get("leader")
    return Observation(claim_of(leader) if leader else None, known=line["event"] == "leader")
