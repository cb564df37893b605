-- Defines clear_notes and add_note.
--
-- When an operator breaks a claim, a note of that is kept. By it the claim's client learns of the break when it renews the claim, when it
-- repeats a release whose first reply was lost, or when it asks for the claim again. A note is the field '~' .. id of the record. Its
-- value is the time until which it is needed, in server microseconds. The field 'notes' counts the notes, 'noted' is the latest of their
-- times. If there were too many notes, they were removed, and until the time 'unsure' a missing note proves nothing.
--
-- Why a claim was broken is the field '=' .. id, if the operator has said it: "EXPIRES REASON". It is for people, and a holder that is
-- broken gracefully has it without a note. It is counted and removed as the notes are, but if there are too many, it goes before them.
local MAX_NOTES = 4096
local NOTE_TIME = 600000 -- ms, added to the claim's TTL: by then its client has asked

-- clear_notes removes the notes and reasons that are not needed any more, and all whose fields begin with one of these letters. It returns
-- how many are left, and the latest time of the notes that it removed.
local function clear_notes(record, now, all)
  local removed, left, latest = {}, 0, 0
  for _, field in ipairs(redis.call('HKEYS', record)) do
    local first = string.sub(field, 1, 1)
    if first == '~' or first == '=' then
      local expires = tonumber(string.match(redis.call('HGET', record, field), '^%d+')) or 0
      if expires < now or all and string.find(all, first, 1, true) then
        removed[#removed + 1] = field
        if first == '~' then latest = math.max(latest, expires) end
      else
        left = left + 1
      end
    end
  end
  -- In parts: unpack is limited by the size of Lua's stack.
  for i = 1, #removed, 1000 do redis.call('HDEL', record, unpack(removed, i, math.min(i + 999, #removed))) end
  return left, latest
end

-- add_note notes that a claim of this TTL was ended, or with a reason only why it is. It looks for expired notes each time their number has
-- doubled.
local function add_note(record, id, ttl, now, reason)
  local h = redis.call('HMGET', record, 'notes', 'noted')
  local count, latest = tonumber(h[1]) or 0, tonumber(h[2]) or 0
  local full = 64
  while full < count do full = full * 2 end
  if count == full then count = clear_notes(record, now) end
  if count >= MAX_NOTES then count = clear_notes(record, now, '=') end
  if count >= MAX_NOTES then
    local _, missing = clear_notes(record, now, '~=')
    count = 0
    redis.call('HSET', record, 'unsure', string.format('%.0f', missing))
  end
  local expires = now + ((tonumber(ttl) or 0) + NOTE_TIME) * 1000
  local field, value = '~' .. id, string.format('%.0f', expires)
  if reason then field, value = '=' .. id, value .. ' ' .. reason end
  redis.call('HSET', record, field, value, 'notes', count + 1, 'noted', string.format('%.0f', math.max(latest, expires)))
end
