-- As ../release_queued.lua, in Redisson's layout: releases a lock, and notifies the waiting clients as Redisson does.
--
-- KEYS  1 the lock  2 its record
-- ARGV  1 claim id  2 PUBLISH or SPUBLISH  3 Redisson's channel  4 '1': a request to make the claim may still arrive,
--       and must be refused then
-- Replies DONE, BROKEN, MAYBE_BROKEN or NOT_FOUND
local NOT_FOUND, DONE, BROKEN, MAYBE_BROKEN = 0, 1, 2, 8
-- The tombstone is kept for two days: longer than any TTL, and than any request can be under way.
if ARGV[4] == '1' then
  redis.call('HDEL', KEYS[2], 'none') -- makes a server that is out of memory accept the next write
  redis.call('HSET', KEYS[2], 'bar', string.sub((redis.call('HGET', KEYS[2], 'bar') or '') .. ' ' .. ARGV[1], -2700))
  redis.call('PEXPIRE', KEYS[2], 172800000)
end
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' or redis.call('HEXISTS', KEYS[1], ARGV[1] .. ':1') == 0 then
  local h, t = redis.call('HMGET', KEYS[2], '~' .. ARGV[1], 'unsure'), redis.call('TIME')
  if h[1] then return BROKEN end
  return (tonumber(h[2]) or 0) > t[1] * 1000000 + t[2] and MAYBE_BROKEN or NOT_FOUND
end
redis.call('DEL', KEYS[1])
redis.call(ARGV[2], ARGV[3], '0')
return DONE
