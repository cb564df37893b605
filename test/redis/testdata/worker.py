# Takes the lock as redis-py does, and counts at the witness how many are inside.
import sys
import time

import redis

host, port = sys.argv[1].split(":")
server = redis.Redis(host=host, port=int(port))
for _ in range(int(sys.argv[2])):
    with server.lock("interop", timeout=10, sleep=0.003):
        if server.incr("witness:inside") != 1:
            server.incr("witness:overlaps")
        server.incr("witness:redispy")
        server.decr("witness:inside")
    time.sleep(0.001)
