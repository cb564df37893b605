-- As ../renew.lua, in Redisson's layout, with the same keys, arguments and replies. It moves the record's expiry each
-- time: this layout stores no time for it.
local GONE, RENEWED, RELEASE_REQUESTED, TAKEN, BROKEN, DETACHED = 0, 1, 3, -1, -2, 1000000000
local answers = {}
for i = 1, #KEYS / 2 do
  local lock, record = KEYS[2 * i - 1], KEYS[2 * i]
  local id, token, ttl = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  local kind = redis.call('TYPE', lock).ok
  local answer
  if kind == 'none' then
    answer = GONE
  elseif kind ~= 'hash' or redis.call('HEXISTS', lock, id .. ':1') == 0 then
    answer = TAKEN
  else
    local h = redis.pcall('HMGET', record, 'id', 'token', 'flags', 'kept', 'ttl')
    local flags = h[3] or ''
    if h.err then
      answer = h
    elseif h[1] ~= id then
      answer = GONE
    elseif h[2] ~= token then
      answer = TAKEN
    elseif string.find(flags, 'b', 1, true) then
      answer = BROKEN
    else
      local detached = string.find(flags, 'd', 1, true)
      if detached then ttl = h[5] end
      redis.call('PEXPIRE', lock, ttl)
      redis.call('PEXPIRE', record, ttl + ARGV[1])
      answer = detached and DETACHED + ttl or string.find(flags, 'a', 1, true) and RELEASE_REQUESTED or RENEWED
    end
  end
  -- A note means that an operator has ended the claim: see ../shared/notes.lua.
  if (answer == GONE or answer == TAKEN) and redis.pcall('HEXISTS', record, '~' .. id) == 1 then answer = BROKEN end
  answers[i] = answer
end
return answers
