-- Writes back the token on which a majority of independent servers is to agree. A server takes it only for the claim
-- that it granted, and only if it is larger than its own.
--
-- KEYS  1 the lock  2 its record
-- ARGV  1 claim id  2 token
-- Gives {1} taken; {0} the claim does not stand; {2, token} its own is as large
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return {0} end
local h = redis.call('HMGET', KEYS[2], 'id', 'token', 'flags')
if h[1] ~= ARGV[1] then return {0} end
if tonumber(ARGV[2]) <= tonumber(h[2]) and not (h[2] == ARGV[2] and string.find(h[3], 's', 1, true)) then
  return {2, tonumber(h[2])}
end
if not string.find(h[3], 's', 1, true) then h[3] = h[3] .. 's' end
redis.call('HSET', KEYS[2], 'token', ARGV[2], 'flags', h[3])
return {1}
