-- Notes of claims that somebody else has ended by an operator's will, so that their clients are told so whenever they ask: a
-- renewal, a release whose first answer was lost, and a waiting claim that comes again. A note is the field '~' .. id of the
-- record, with the server microseconds until which it is needed; 'notes' counts them, 'noted' is the latest of those times, and
-- 'unsure' is until when notes are missing, since there were too many.
local MOSTNOTES, NOTETIME = 4096, 600000 -- milliseconds, beside the claim's TTL: until then its client has asked

-- clearnotes removes the notes that are needed no more.
local function clearnotes(record, now, all)
  local over, left, latest = {}, 0, 0
  for _, field in ipairs(redis.call('HKEYS', record)) do
    if string.sub(field, 1, 1) == '~' then
      local ends = tonumber(redis.call('HGET', record, field)) or 0
      if all or ends < now then
        over[#over + 1] = field
        latest = math.max(latest, ends)
      else
        left = left + 1
      end
    end
  end
  for i = 1, #over, 1000 do redis.call('HDEL', record, unpack(over, i, math.min(i + 999, #over))) end
  return left, latest
end

-- note keeps in mind that a claim of that TTL was ended. It looks for those that are over when their number has doubled.
local function note(record, who, ttl, now)
  local h = redis.call('HMGET', record, 'notes', 'noted')
  local count, latest = tonumber(h[1]) or 0, tonumber(h[2]) or 0
  local full = 64
  while full < count do full = full * 2 end
  if count == full then count = clearnotes(record, now) end
  if count >= MOSTNOTES then
    local _, missing = clearnotes(record, now, true)
    count = 0
    redis.call('HSET', record, 'unsure', string.format('%.0f', missing))
  end
  local ends = now + ((tonumber(ttl) or 0) + NOTETIME) * 1000
  redis.call('HSET', record, '~' .. who, string.format('%.0f', ends), 'notes', count + 1, 'noted', string.format('%.0f', math.max(latest, ends)))
end
