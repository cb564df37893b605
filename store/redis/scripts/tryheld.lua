-- The same, where something stands under the key.
local value = redis.pcall('GETRANGE', lock, 0, 1023)
local s = call('HMGET', record, 'id', 'flags', 'owner', 'meta', 'ttl')
if value == id then
  local flags = s[2] or ''
  if s[1] ~= id or string.find(flags, 'c', 1, true) then return {6} end
  if string.find(flags, 'b', 1, true) then return {2} end
  call('PEXPIRE', lock, ttl)
  call('PEXPIRE', record, ttl + ARGV[6] + 3600000)
  call('HDEL', record, 'kept')
  if ARGV[7] and ARGV[7] + 0 > (tonumber(call('HGET', record, 'ballot')) or 0) then call('HSET', record, 'ballot', ARGV[7]) end
  return {1, tonumber(h[1]), flags}
end
if h[2] then return {6} end
local left = call('PTTL', lock)
if type(value) == 'string' and s[1] == value then
  return {0, left, 0, 0, {value, h[1], s[3], s[4], s[5], h[1], s[2], '1', left}}
end
if type(value) == 'string' and value == call('HGET', record, 'mark') then return {6} end
local what, digest = foreign(lock)
return {0, left, 0, 0, {digest, '', what, '', '', '', 'f', '1', left}}
