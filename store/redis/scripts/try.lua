-- Takes a mutex that is free, or gives a claim that stands its grant again. What it cannot decide alone, because claims
-- stand in line, it leaves to enter.lua.
--
-- KEYS  1 the lock: a string whose value is the holder's claim id
--       2 its record: a hash that keeps the largest token and what is shown of the holder
-- ARGV  1 claim id  2 TTL in ms  3 owner  4 note  5 flags  6 how long the record is kept without its lock, in ms
--       7 of a Redlock: the ballot's number; the record keeps the largest (see leavequiet.lua)
--
-- It is the most used of all steps, so it sets first and looks second, and answers with a bare number where it can. The
-- record's own expiry is moved rarely: it is kept for at least ARGV[6] after the lock's, and for up to twice that.
-- Gives the token: granted; {1, token, flags} it stood; {0, ms left or less than 0, claims in line, 0, holder} held; {2}
--       broken; {6} ask enter.lua; {7} it was released, and this request came late
local call, lock, record, id, ttl = redis.call, KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local set = call('SET', lock, id, 'NX', 'PX', ttl)
local h = call('HMGET', record, 'token', 'line', 'bar', 'kept')
if set then
  local late = h[3] and string.find(h[3], id, 1, true)
  if late or h[2] then
    call('DEL', lock)
    return {late and 7 or 6}
  end
  local t = call('TIME')
  local now = t[1] * 1000000 + t[2]
  local token = now
  if h[1] and h[1] + 1 > now then token = h[1] + 1 end
  call('HSET', record, 'id', id, 'token', token, 'owner', ARGV[3], 'meta', ARGV[4], 'ttl', ttl, 'flags', ARGV[5])
  local need = now + (ttl + ARGV[6]) * 1000
  if ARGV[7] then call('HSET', record, 'ballot', ARGV[7]) end
  if not h[4] or h[4] + 0 < need then
    local kept = need + ARGV[6] * 1000
    call('HSET', record, 'kept', kept)
    call('PEXPIREAT', record, string.format('%.0f', kept / 1000))
  end
  return token
end
local value = redis.pcall('GET', lock)
local s = call('HMGET', record, 'id', 'flags', 'owner', 'meta', 'ttl')
if value == id then
  local flags = s[2] or ''
  if s[1] ~= id or string.find(flags, 'c', 1, true) then return {6} end
  if string.find(flags, 'b', 1, true) then return {2} end
  call('PEXPIRE', lock, ttl)
  call('PEXPIRE', record, ttl + 2 * ARGV[6])
  call('HDEL', record, 'kept')
  if ARGV[7] and ARGV[7] + 0 > (tonumber(call('HGET', record, 'ballot')) or 0) then call('HSET', record, 'ballot', ARGV[7]) end
  return {1, tonumber(h[1]), flags}
end
if h[2] then return {6} end
local left = call('PTTL', lock)
if type(value) == 'string' and s[1] == value then
  return {0, left, 0, 0, {value, h[1], s[3], s[4], s[5], h[1], s[2], '1', left}}
end
if type(value) ~= 'string' then
  value = call('TYPE', lock).ok
elseif value == call('HGET', record, 'mark') then
  return {6}
end
return {0, left, 0, 0, {'', '', string.sub(value, 1, 256), '', '', '', 'f', '1', left}}
