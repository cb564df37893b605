-- Renews the holders of many mutexes. One that does not stand is told so and never made again.
--
-- KEYS  for each: the lock, its record
-- ARGV  1 how long a record is kept without its lock, in ms; then for each: claim id, token, TTL in ms
-- Gives for each: 1 renewed; 3 renewed, and asked to give up; 0 gone; -1 another's; -2 broken; 10^9 and its TTL in
--       ms: renewed, and detached; or the error of one alone
local answers = {}
local time
local function now()
  time = time or redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
for i = 1, #KEYS / 2 do
  local lock, record = KEYS[2 * i - 1], KEYS[2 * i]
  local id, token, ttl = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  local value = redis.pcall('GET', lock)
  local answer
  if not value then
    answer = 0
  elseif value ~= id then
    answer = -1
  else
    local h = redis.pcall('HMGET', record, 'id', 'token', 'flags', 'kept', 'ttl')
    local flags = h[3] or ''
    if h.err then
      answer = h
    elseif h[1] ~= id then
      answer = 0
    elseif h[2] ~= token or string.find(flags, 'c', 1, true) then
      answer = -1
    elseif string.find(flags, 'b', 1, true) then
      answer = -2
    else
      local detached = string.find(flags, 'd', 1, true)
      if detached then ttl = h[5] end -- it lasts as long as was said when it was left
      redis.call('PEXPIRE', lock, ttl)
      local need = now() + (ttl + ARGV[1]) * 1000
      if (tonumber(h[4]) or 0) < need then -- hourly
        redis.call('PEXPIRE', record, ttl + ARGV[1] + 3600000)
        if redis.call('HEXISTS', record, 'line') == 1 then
          redis.call('HDEL', record, 'kept') -- the next step on the line moves the ends of all its keys
        else
          redis.call('HSET', record, 'kept', string.format('%.0f', need + 3600000000))
        end
      end
      answer = detached and 1000000000 + ttl or string.find(flags, 'a', 1, true) and 3 or 1
    end
  end
  if (answer == 0 or answer == -1) and redis.pcall('HEXISTS', record, '~' .. id) == 1 then answer = -2 end -- see notes.lua
  answers[i] = answer
end
return answers
