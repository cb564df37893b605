-- Removes what is kept of a lock that has no claims.
--
-- KEYS  1 the lock  2 its queue, or the lock again  3 and more: the keys to remove
-- Replies 1 if nothing is left, 0 if there are claims.
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
redis.call('DEL', unpack(KEYS, 3))
return 1
