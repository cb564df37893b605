"""Adds 1 to the number in a file, several times, each time under the lock "counter": worker.py ADDRESSES FILE TURNS TTL."""

import http.client
import sys
import time

from holdfast import Hold, Problem

addresses, file, turns, ttl = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
done = tries = 0
while done < turns:
    try:
        with Hold("counter", addresses[tries % len(addresses)], ttl_ms=ttl, fair=True) as lock:
            lock.check()
            with open(file) as f:
                number = int(f.read())
            time.sleep(0.001)
            with open(file, "w") as f:
                f.write(str(number + 1))
            with open(file + ".tokens", "a") as f:
                f.write(f"{lock.token}\n")
            done += 1
    except (Problem, OSError, http.client.HTTPException):  # ask another server
        tries += 1
        time.sleep(0.05)
