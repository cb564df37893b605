"""Takes locks with kazoo's recipes, and adds to the number in a file, for some rounds."""
import sys

from kazoo.client import KazooClient

servers, path, kind, rounds, file = sys.argv[1:6]
client = KazooClient(hosts=servers, timeout=60)
client.start(timeout=120)


def read():
    with open(file) as f:
        return f.read().strip()


added = 0


def add():
    global added
    n = int(read())
    with open(file, "w") as f:
        f.flush()
        f.write(str(n + 1))
    added += 1


for _ in range(int(rounds)):
    if kind == "mutex":
        lock = client.Lock(path)
    else:
        # Not ReadLock: kazoo's waits for writers behind it, who wait for it.
        lock = client.WriteLock(path)
    if not lock.acquire(timeout=180):
        sys.exit("no progress in three minutes")
    add()
    lock.release()
client.stop()
print("added", added)
