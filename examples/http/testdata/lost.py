"""Holds the lock "lost" until it is lost, and says so: lost.py ADDRESS."""

import sys

from holdfast import Hold, Lost

try:
    with Hold("lost", sys.argv[1], ttl_ms=int(sys.argv[2])) as lock:
        print("acquired", flush=True)
        lock.lost.wait()
        print("lost", flush=True)
except Lost:
    print("not released", flush=True)
