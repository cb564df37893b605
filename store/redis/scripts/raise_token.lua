-- Makes sure that no token smaller than a number is drawn for a lock from now on. The field token is left alone: it is
-- also the token of a mutex's holder.
--
-- KEYS  as in shared/state.lua
-- ARGV  1 the number  2 how long the record is kept without its lock, in ms
-- Replies {DONE}
local DONE = 1
local record, floor = KEYS[2], tonumber(ARGV[1])
local h = redis.call('HMGET', record, 'token', 'floor', 'kept')
if math.max((tonumber(h[1]) or 0) + 1, tonumber(h[2]) or 0) >= floor then return {DONE} end
redis.call('HSET', record, 'floor', ARGV[1])
-- Later tokens are at least the server's time. So the record must be kept until the clock has passed the floor, and the
-- keys next to it as long as shared/state.lua says: a later script moves no expiry to an earlier time.
local t = redis.call('TIME')
local kept = math.max(t[1] * 1000000 + t[2], floor) + ARGV[2] * 1000 + 3600000000
if (tonumber(h[3]) or 0) < kept then
  redis.call('HSET', record, 'kept', string.format('%.0f', kept))
  redis.call('PEXPIREAT', record, string.format('%.0f', kept / 1000))
  for i = 3, 5 do redis.call('PEXPIREAT', KEYS[i], string.format('%.0f', kept / 1000 - 86400000)) end
end
return {DONE}
