# Acquires and releases locks as redis-py does, for the benchmark: redispy.py [asyncio] URL TOKEN
import asyncio
import json
import sys
import threading

import redis
import redis.asyncio

use_asyncio, url = sys.argv[1] == "asyncio", sys.argv[-2]


def shares(callers, count):
    """How many cycles each caller makes."""
    return [count // callers + (i < count % callers) for i in range(callers)]


def cycles(server, callers, count):
    def call(i, n):
        for _ in range(n):
            with server.lock(f"redis-py-{i}", timeout=30):
                pass

    threads = [threading.Thread(target=call, args=share) for share in enumerate(shares(callers, count))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


async def cycles_async(server, callers, count):
    async def call(i, n):
        for _ in range(n):
            async with server.lock(f"redis-py-asyncio-{i}", timeout=30):
                pass

    await asyncio.gather(*(call(*share) for share in enumerate(shares(callers, count))))


async def main():
    server = redis.asyncio.from_url(url) if use_asyncio else redis.from_url(url)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        callers, count = command["callers"], command["count"]
        if use_asyncio:
            await cycles_async(server, callers, count)
        else:
            await loop.run_in_executor(None, cycles, server, callers, count)
        print(json.dumps({"id": command["id"]}), flush=True)
    if use_asyncio:
        await server.aclose()


asyncio.run(main())
