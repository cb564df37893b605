"""Takes locks with kazoo's recipes, and adds to the number in a file or looks that nobody does, for some rounds."""
import random
import sys
import time

from kazoo.client import KazooClient

servers, path, kind, rounds, file = sys.argv[1:6]
client = KazooClient(hosts=servers, timeout=20)
client.start()


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


def look():
    before = read()
    time.sleep(0.001)
    if before == "" or before != read():
        sys.exit("written under a reader")


for _ in range(int(rounds)):
    if kind == "mutex":
        lock, act = client.Lock(path), add
    elif random.randrange(2):
        lock, act = client.WriteLock(path), add
    else:
        lock, act = client.ReadLock(path), look
    if not lock.acquire(timeout=60):
        sys.exit("no progress in a minute")
    act()
    lock.release()
client.stop()
print("added", added)
