"""Does what the cases in clients/cases say: a command per line of stdin, an answer per line of stdout.

agent.py [asyncio] URL TOKEN
"""

import asyncio
import inspect
import json
import sys
import threading
import time
from dataclasses import asdict

import holdfast

blocks = {}
opening = {}
handles = {}
writing = threading.Lock()


async def result(value):
    """What a call returns, of the client for asyncio or of the other one."""
    return await value if inspect.isawaitable(value) else value


async def enter(block):
    return await block.__aenter__() if hasattr(block, "__aenter__") else block.__enter__()


async def leave(block, error):
    kind = None if error is None else type(error)
    if hasattr(block, "__aexit__"):
        await block.__aexit__(kind, error, None)
    else:
        block.__exit__(kind, error, None)


def lock_of(locks, a):
    kind = a.pop("kind", "mutex")
    name = a.pop("name")
    if kind == "semaphore":
        return locks.semaphore(name, a.pop("limit"), **a)
    if kind == "election":
        wait, note = a.pop("wait", None), a.pop("note", None)
        return locks.election(name, **a).campaign(wait=wait, note=note)
    return {"mutex": locks.mutex, "reader": locks.reader, "writer": locks.writer}[kind](name, **a)


def split(a, *names):
    return {n: a.pop(n) for n in names if n in a}


class OwnError(Exception):
    """An error of the work."""


async def do(locks, what, a):
    if what == "open":  # a block, which lasts until close
        label = a.pop("as")
        opening[label] = asyncio.current_task()
        block = lock_of(locks, a)
        held = await enter(block)
        blocks[label] = (block, held)
        return {
            "token": held.token,
            "owner": held.owner,
            "kind": held.kind,
            "permits": held.permits,
            "locks": sorted(held.tokens),
        }
    if what == "begin":
        label = a.pop("as")
        how = split(a, "wait", "note", "fingerprint")
        key = a.pop("key")
        run = await result(locks.ledger(a.pop("ledger"), **a).begin(key, **how))
        blocks[label] = (run, await enter(run))
        return {"token": run.token, "attempt": run.attempt}
    if what in ("close", "raise"):
        block, held = blocks[a["as"]]
        if "result" in a:
            held.result = a["result"]
        error = OwnError("the work went wrong") if what == "raise" else None
        await leave(block, error)
        if error is not None:
            return {"notes": " ".join(getattr(error, "__notes__", []))}
        return {}
    if what == "release":
        await result(blocks[a["as"]][1].release())
        return {}
    if what == "succeed":
        await result(blocks[a["as"]][1].succeed(a.get("result")))
        return {}
    if what == "fail":
        await result(blocks[a["as"]][1].fail(a.get("text", "")))
        return {}
    if what == "check":
        return {"remaining": await result(blocks[a["as"]][1].check()) > 0}
    if what == "valid":
        held = blocks[a["as"]][1]
        return {"valid": held.valid(), "remaining": held.remaining() > 0}
    if what == "await-lost":
        held = blocks[a["as"]][1]
        told = []
        await result(held.lost.wait())
        locks_lost = []
        await result(held.on_lost(lambda error: (told.append(error.cause), locks_lost.append(error.lock))))
        return {"valid": held.valid(), "cause": held.cause, "told": told, "lock": locks_lost[0]}
    if what == "await-request":
        held = blocks[a["as"]][1]
        if hasattr(held, "wait_release_requested"):
            held.wait_release_requested()
        else:
            await held.release_requested.wait()
        return {}
    if what == "request-release":
        await result(locks.request_release(a["name"]))
        return {}
    if what == "leader":
        leader = await result(locks.election(a["name"]).leader())
        return {"leader": None if leader is None else leader.note}
    if what == "observe":  # until somebody with this note leads
        changes = locks.election(a["name"]).observe()
        if hasattr(changes, "__aiter__"):
            async for seen in changes:
                if seen.leader is not None and seen.leader.note == a["note"]:
                    break
            await changes.aclose()
        else:
            for seen in changes:
                if seen.leader is not None and seen.leader.note == a["note"]:
                    break
            changes.close()
        return {}
    if what == "list":
        return {"names": [lock.name for lock in await result(locks.list(a.get("prefix", "")))]}
    if what == "show":
        lock = await result(locks.show(a["name"]))
        return {"kind": lock.kind, "holders": [asdict(c)["owner"] for c in lock.holders], "waiters": len(lock.waiters)}
    if what == "history":
        runs = await result(locks.ledger(a["ledger"]).history(a["key"]))
        return {"states": [r.state for r in runs], "results": [r.result for r in runs], "errors": [r.error for r in runs]}
    if what == "keys":
        runs = await result(locks.ledger(a["ledger"]).list())
        return {"keys": [r.key for r in runs]}
    if what == "acquire-timed":
        key = a.pop("key", None)
        timed = await result(
            lock_of(locks, {k: v for k, v in a.items() if k != "as"}).acquire_timed(idempotency_key=key)
        )
        handles[a["as"]] = timed
        return {"token": timed.token, "locks": sorted(timed.tokens), "permits": timed.permits}
    if what == "detach":
        handles[a["as"]] = await result(blocks[a["as"]][1].detach())
        return {}
    if what == "renew":
        return {"remaining": await result(locks.renew(handles[a["as"]].handle)) > 0}
    if what == "release-timed":
        await result(locks.release(handles[a["as"]].handle))
        return {}
    if what == "work":  # holds the lock several times, and writes into a log from when to when that was certain
        done, end = 0, time.monotonic() + a["for"]
        while done < a["turns"] or time.monotonic() < end:
            try:
                lock = locks.mutex("counter", ttl=a["ttl"], fair=True)
                lease = await enter(lock)
                try:
                    await result(lease.check())
                    start = time.monotonic_ns()
                    await asyncio.sleep(0.001)
                    line = f"{a['as']} {lease.token} {start} {time.monotonic_ns()}\n"
                    if lease.valid():
                        with open(a["file"], "a") as log:
                            log.write(line)
                        done += 1
                finally:
                    await leave(lock, sys.exception())
            except holdfast.HoldfastError:
                await asyncio.sleep(0.05)
        return {}
    if what == "cycles":  # for the benchmark: locks are acquired and released, count times in all

        def share(i):
            return a["count"] // a["callers"] + (i < a["count"] % a["callers"])

        def call(i):
            for _ in range(share(i)):
                with locks.mutex(str(i)):
                    pass

        async def call_async(i):
            for _ in range(share(i)):
                async with locks.mutex(str(i)):
                    pass

        if use_asyncio:
            await asyncio.gather(*(call_async(i) for i in range(a["callers"])))
        else:
            threads = [threading.Thread(target=call, args=(i,)) for i in range(a["callers"])]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return {}
    if what == "connect":  # to another URL
        other = (holdfast.aio.connect if use_asyncio else holdfast.connect)(a["url"], token=a.get("token"))
        try:
            await result(other.list())
        finally:
            await result(other.close())
        return {}
    if what == "cancel":  # the wait of an open
        opening[a["as"]].cancel()
        return {}
    if what == "close-client":
        await result(locks.close())
        return {}
    raise ValueError(what)


async def answer(locks, command):
    number, what = command.pop("id"), command.pop("do")
    try:
        reply = {"id": number, **await do(locks, what, command)}
    except holdfast.HoldfastError as e:
        public = next(c.__name__ for c in type(e).__mro__ if c.__name__ in holdfast.__all__)
        reply = {"id": number, "error": public, "message": str(e), "cause": getattr(e, "cause", None)}
        if isinstance(e, holdfast.LockLost):
            reply["lock"] = e.lock
        if isinstance(e, (holdfast.LockHeld, holdfast.LockTimeout)):
            reply["holders"] = [c.owner for c in e.holders]
        if isinstance(e, holdfast.TooSoon):
            reply["later"] = e.retry_after > 0
    except asyncio.CancelledError:
        reply = {"id": number, "error": "Canceled"}
    except Exception as e:
        reply = {"id": number, "error": f"{type(e).__name__}: {e}"}
    with writing:
        print(json.dumps(reply), flush=True)


async def main(locks):
    loop = asyncio.get_running_loop()
    tasks = set()
    async with locks:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            tasks.add(asyncio.create_task(answer(locks, json.loads(line))))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    use_asyncio = arguments[0] == "asyncio"
    url, token = arguments[-2], arguments[-1] or None
    if use_asyncio:
        asyncio.run(main(holdfast.aio.connect(url, token=token)))
    else:
        with holdfast.connect(url, token=token) as client:
            for text in sys.stdin:
                threading.Thread(target=lambda c: asyncio.run(answer(client, c)), args=(json.loads(text),), daemon=True).start()
