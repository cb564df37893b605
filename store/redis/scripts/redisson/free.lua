-- Gives a lock in Redisson's layout back, and tells those who wait as Redisson does.
--
-- KEYS  1 the lock  2 its record
-- ARGV  1 claim id  2 PUBLISH or SPUBLISH  3 Redisson's channel  4 '1': a request to make the claim may yet come
-- Gives 1 released; 0, 2 or 8: as ../leave.lua
if ARGV[4] == '1' then
  redis.call('HDEL', KEYS[2], 'none') -- a server that is full takes the next write then
  redis.call('HSET', KEYS[2], 'bar', string.sub((redis.call('HGET', KEYS[2], 'bar') or '') .. ' ' .. ARGV[1], -2700))
  redis.call('PEXPIRE', KEYS[2], 172800000)
end
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' or redis.call('HEXISTS', KEYS[1], ARGV[1] .. ':1') == 0 then
  local h, t = redis.call('HMGET', KEYS[2], '~' .. ARGV[1], 'unsure'), redis.call('TIME')
  if h[1] then return 2 end
  return (tonumber(h[2]) or 0) > t[1] * 1000000 + t[2] and 8 or 0
end
redis.call('DEL', KEYS[1])
redis.call(ARGV[2], ARGV[3], '0')
return 1
