-- Releases a mutex for which no claim waits in the queue, and notifies the clients that wait outside of it. It leaves
-- everything else to release_queued.lua. The record stays, for its token, with the id of the last holder, which counts
-- for nothing once the key is gone.
--
-- KEYS  1 the lock  2 its record, whose key is also the name of the lock's channel
-- ARGV  1 claim id  2 PUBLISH or SPUBLISH
-- Replies DONE; USE_QUEUE: run release_queued.lua
local DONE, USE_QUEUE = 1, 6
local call, lock, record = redis.call, KEYS[1], KEYS[2]
if redis.pcall('GETRANGE', lock, 0, 1023) ~= ARGV[1] or call('HEXISTS', record, 'line') == 1 then return USE_QUEUE end
call('DEL', lock)
call(ARGV[2], record, 'free')
return DONE
