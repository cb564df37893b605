"""Adds 1 to the number in a file, several times, each time under the lock "counter": worker.py ADDRESS FILE TURNS."""

import sys
import time

from holdfast import Hold

address, file, turns = sys.argv[1], sys.argv[2], int(sys.argv[3])
for _ in range(turns):
    with Hold("counter", address, ttl_ms=20000, fair=True) as lock:
        lock.check()
        with open(file) as f:
            number = int(f.read())
        time.sleep(0.001)
        with open(file, "w") as f:
            f.write(str(number + 1))
        with open(file + ".tokens", "a") as f:
            f.write(f"{lock.token}\n")
