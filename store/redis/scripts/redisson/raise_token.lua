-- As ../raise_token.lua, in Redisson's layout. It raises the key that RFencedLock counts up, so that the tokens of both
-- kinds of client rise. The key gets no expiry.
--
-- KEYS  1 the lock  2 its record  3 Redisson's token key
-- ARGV  1 the number
-- Replies {DONE}
local DONE = 1
local last = ARGV[1] - 1
local drawn = tonumber(redis.call('HGET', KEYS[2], 'token')) or 0
local counted = tonumber(redis.call('GET', KEYS[3])) or 0
if math.max(drawn, counted) < last or counted > 0 and counted < last then
  redis.call('SET', KEYS[3], string.format('%.0f', last))
end
return {DONE}
