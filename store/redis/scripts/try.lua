-- Takes a mutex that is free, or gives a claim that stands its grant again. What it cannot decide alone, because claims
-- stand in line, it leaves to enter.lua.
--
-- KEYS  1 the lock: a string whose value is the holder's claim id
--       2 its record: a hash that keeps the largest token and what is shown of the holder
-- ARGV  1 claim id  2 TTL in ms  3 owner  4 note  5 flags  6 how long the record is kept without its lock, in ms
--
-- It is the most used of all steps, so it sets first and looks second. The record's own expiry is moved rarely: it is kept
-- for at least ARGV[6] after the lock's, and for up to twice that.
-- Gives {1, token} granted, {1, token, flags} again; {0, ms left or less than 0, claims in line, 0, holder} held; {2} broken; {6} ask enter.lua;
--       {7} it was released, and this request came late
local lock, record, id = KEYS[1], KEYS[2], ARGV[1]
local set = redis.call('SET', lock, id, 'NX', 'PX', ARGV[2])
local h = redis.call('HMGET', record, 'token', 'line', 'bar', 'kept')
if set then
  local late = h[3] and string.find(h[3], id, 1, true)
  if late or h[2] then
    redis.call('DEL', lock)
    return {late and 7 or 6}
  end
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local token = now
  if h[1] and h[1] + 1 > now then token = h[1] + 1 end
  local kept = tonumber(h[4]) or 0
  local need = now + (ARGV[2] + ARGV[6]) * 1000
  if kept < need then kept = need + ARGV[6] * 1000 end
  redis.call('HSET', record, 'id', id, 'token', string.format('%.0f', token), 'owner', ARGV[3], 'meta', ARGV[4],
    'ttl', ARGV[2], 'flags', ARGV[5], 'kept', string.format('%.0f', kept))
  if kept ~= tonumber(h[4]) then redis.call('PEXPIREAT', record, string.format('%.0f', kept / 1000)) end
  return {1, token}
end
local value = redis.pcall('GET', lock)
local s = redis.call('HMGET', record, 'id', 'flags', 'owner', 'meta', 'ttl')
if value == id then
  local flags = s[2] or ''
  if s[1] ~= id or string.find(flags, 'c', 1, true) then return {6} end
  if string.find(flags, 'b', 1, true) then return {2} end
  redis.call('PEXPIRE', lock, ARGV[2])
  redis.call('PEXPIRE', record, ARGV[2] + 2 * ARGV[6])
  redis.call('HDEL', record, 'kept')
  return {1, tonumber(h[1]), flags}
end
if h[2] then return {6} end
local left = redis.call('PTTL', lock)
if type(value) == 'string' and s[1] == value then
  return {0, left, 0, 0, {value, h[1], s[3], s[4], s[5], h[1], s[2], '1', left}}
end
if type(value) ~= 'string' then
  value = redis.call('TYPE', lock).ok
elseif value == redis.call('HGET', record, 'mark') then
  return {6}
end
return {0, left, 0, 0, {'', '', string.sub(value, 1, 256), '', '', '', 'f', '1', left}}
