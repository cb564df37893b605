"""Locks for asyncio.

    async with holdfast.aio.connect("redis://cache:6379") as locks:
        async with locks.mutex("nightly", wait=10) as lease:
            await report(token=lease.token)
"""

from ._core import AsyncClient as Client
from ._core import AsyncElection as Election
from ._core import AsyncLease as Lease
from ._core import AsyncLedger as Ledger
from ._core import AsyncLock as Lock
from ._core import AsyncRun as Run
from ._core import connect

__all__ = ["Client", "Election", "Lease", "Ledger", "Lock", "Run", "connect"]
