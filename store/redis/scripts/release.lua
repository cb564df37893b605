-- Releases a mutex for which no claim waits. All waiters stand in the queue, so there is nobody to notify. It leaves everything else to
-- release_queued.lua. The record stays, for its token, with the id of the last holder, which counts for nothing once the key is gone.
--
-- KEYS  1 the lock  2 its record
-- ARGV  1 claim id
-- Replies DONE; USE_QUEUE: run release_queued.lua
local DONE, USE_QUEUE = 1, 6
local lock = KEYS[1]
if redis.pcall('GET', lock) ~= ARGV[1] or redis.call('HEXISTS', KEYS[2], 'line') == 1 then return USE_QUEUE end
redis.call('DEL', lock)
return DONE
