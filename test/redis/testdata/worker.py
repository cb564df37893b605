# Takes the lock as redis-py does, and counts at the witness how many are inside. It polls often, and leaves the lock free
# for a moment. With a third argument it holds the lock for so many seconds, wants it again at once, and polls as redis-py
# does by default. Without a number of rounds it goes on until the witness says that the others have finished.
import sys
import time

import redis

host, port = sys.argv[1].split(":")
rounds = int(sys.argv[2])
busy = len(sys.argv) > 3
poll, work = (0.1, float(sys.argv[3])) if busy else (0.003, 0)
server = redis.Redis(host=host, port=int(port))
done = 0
while done < rounds or rounds == 0 and not server.exists("witness:over"):
    with server.lock("interop", timeout=10, sleep=poll):
        if server.incr("witness:inside") != 1:
            server.incr("witness:overlaps")
        server.incr("witness:redispy")
        time.sleep(work)
        server.decr("witness:inside")
    done += 1
    if not busy:
        time.sleep(0.001)
