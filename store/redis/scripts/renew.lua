-- Renews the holders of many mutexes. A claim that does not exist is never made again: the lock may have been another
-- claim's meanwhile.
--
-- KEYS  for each: the lock, its record
-- ARGV  1 how long a record is kept without its lock, in ms; then for each: claim id, token, TTL in ms
-- Replies for each: RENEWED; RELEASE_REQUESTED: renewed too; GONE; TAKEN: the lock is another claim's; BROKEN: an operator
--       has ended the claim; MARKED: an operator has broken it gracefully, so it still holds the lock; DETACHED plus the
--       TTL in ms: renewed, for as long as was said when the claim was detached; or the error of this one
local GONE, RENEWED, RELEASE_REQUESTED, TAKEN, BROKEN, MARKED, DETACHED = 0, 1, 3, -1, -2, -3, 1000000000
local answers = {}
local time
local function now()
  time = time or redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
for i = 1, #KEYS / 2 do
  local lock, record = KEYS[2 * i - 1], KEYS[2 * i]
  local id, token, ttl = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  -- pcall, here and below: a key of another type concerns this lock alone, and must not end the renewals of the others.
  local value = redis.pcall('GET', lock)
  local answer
  if not value then
    answer = GONE
  elseif value ~= id then
    answer = TAKEN
  else
    local h = redis.pcall('HMGET', record, 'id', 'token', 'flags', 'kept', 'ttl')
    local flags = h[3] or ''
    if h.err then
      answer = h
    elseif h[1] ~= id then
      answer = GONE
    elseif h[2] ~= token or string.find(flags, 'c', 1, true) then
      answer = TAKEN
    elseif string.find(flags, 'b', 1, true) then
      answer = MARKED
    else
      local detached = string.find(flags, 'd', 1, true)
      if detached then ttl = h[5] end
      redis.call('PEXPIRE', lock, ttl)
      local needed = now() + (ttl + ARGV[1]) * 1000
      -- The record must outlive the lock. Its expiry is moved once per hour, by an hour more than needed.
      if (tonumber(h[4]) or 0) < needed then
        redis.call('PEXPIRE', record, ttl + ARGV[1] + 3600000)
        if redis.call('HEXISTS', record, 'line') == 1 then
          -- Claims wait, so there are more keys. The next script on the queue moves the expiries of all of them.
          redis.call('HDEL', record, 'kept')
        else
          redis.call('HSET', record, 'kept', string.format('%.0f', needed + 3600000000))
        end
      end
      answer = detached and DETACHED + ttl or string.find(flags, 'a', 1, true) and RELEASE_REQUESTED or RENEWED
    end
  end
  -- A note means that an operator has ended the claim: see shared/notes.lua.
  if (answer == GONE or answer == TAKEN) and redis.pcall('HEXISTS', record, '~' .. id) == 1 then answer = BROKEN end
  answers[i] = answer
end
return answers
