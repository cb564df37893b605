-- Takes a mutex that is free, or gives a claim that stands its grant again. What it cannot decide alone, because claims
-- stand in line, it leaves to enter.lua.
--
-- KEYS  1 the lock: a string whose value is the holder's claim id
--       2 its record: a hash that keeps the largest token and what is shown of the holder
-- ARGV  1 claim id  2 TTL in ms  3 owner  4 note  5 flags  6 how long the record is kept without its lock, in ms
--       7 of a Redlock: the ballot's number; the record keeps the largest (see leavequiet.lua)
--
-- It is the most used of all steps, so it sets first and looks second, and answers with a bare number where it can. The
-- record's own expiry is moved once an hour: it is kept for at least ARGV[6] after the lock's, and for up to an hour longer.
-- Gives the token: granted; {1, token, flags} it stood; {0, ms left or less than 0, claims in line, 0, holder} held; {2}
--       broken; {6} ask enter.lua; {7} it was released, and this request came late
local call, lock, record, id, ttl = redis.call, KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local set = call('SET', lock, id, 'NX', 'PX', ttl)
local h = call('HMGET', record, 'token', 'line', 'bar', 'kept', '~' .. id)
if set then
  local late = h[3] and string.find(h[3], id, 1, true)
  if h[5] or late or h[2] then
    call('DEL', lock)
    return {h[5] and 2 or late and 7 or 6}
  end
  local t = call('TIME')
  local now = t[1] * 1000000 + t[2]
  local token = now
  if h[1] and h[1] + 1 > now then token = h[1] + 1 end
  call('HSET', record, 'id', id, 'token', token, 'owner', ARGV[3], 'meta', ARGV[4], 'ttl', ttl, 'flags', ARGV[5])
  local need = now + (ttl + ARGV[6]) * 1000
  if ARGV[7] then call('HSET', record, 'ballot', ARGV[7]) end
  if not h[4] or h[4] + 0 < need then
    local kept = need + 3600000000
    call('HSET', record, 'kept', kept)
    call('PEXPIREAT', record, string.format('%.0f', kept / 1000))
  end
  return token
end
