# Takes the lock as redis-py does, and counts at the witness how many are inside. It polls often, and leaves the lock free
# for a moment. With a third argument it holds the lock for so many seconds, wants it again at once, and polls as redis-py
# does by default. Without a number of rounds it goes on until the witness says that the others have finished. The fourth
# argument names another client, which must have had the lock before this one wants it again.
import sys
import time

import redis

host, port = sys.argv[1].split(":")
rounds = int(sys.argv[2])
busy = len(sys.argv) > 3
poll, work = (0.1, float(sys.argv[3])) if busy else (0.003, 0)
crowd = sys.argv[4] if len(sys.argv) > 4 else ""
server = redis.Redis(host=host, port=int(port))
done = 0
while done < rounds or rounds == 0 and not server.exists("witness:over"):
    with server.lock("interop", timeout=10, sleep=poll):
        if server.incr("witness:inside") != 1:
            server.incr("witness:overlaps")
        server.incr("witness:redispy")
        time.sleep(work)
        turn = server.get("witness:" + crowd)
        server.decr("witness:inside")
    done += 1
    while crowd and server.get("witness:" + crowd) == turn:
        time.sleep(0.001)
    if not busy:
        time.sleep(0.001)
