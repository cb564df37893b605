-- As ../renew.lua, in Redisson's layout.
local answers = {}
for i = 1, #KEYS / 2 do
  local lock, record = KEYS[2 * i - 1], KEYS[2 * i]
  local id, token, ttl = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  local kind = redis.call('TYPE', lock).ok
  local answer
  if kind == 'none' then
    answer = 0
  elseif kind ~= 'hash' or redis.call('HEXISTS', lock, id .. ':1') == 0 then
    answer = -1
  else
    local h = redis.pcall('HMGET', record, 'id', 'token', 'flags', 'kept', 'ttl')
    local flags = h[3] or ''
    if h.err then
      answer = h
    elseif h[1] ~= id then
      answer = 0
    elseif h[2] ~= token then
      answer = -1
    elseif string.find(flags, 'b', 1, true) then
      answer = -2
    else
      local detached = string.find(flags, 'd', 1, true)
      if detached then ttl = h[5] end -- it lasts as long as was said when it was left
      redis.call('PEXPIRE', lock, ttl)
      redis.call('PEXPIRE', record, ttl + ARGV[1])
      answer = detached and 1000000000 + ttl or string.find(flags, 'a', 1, true) and 3 or 1
    end
  end
  if (answer == 0 or answer == -1) and redis.pcall('HEXISTS', record, '~' .. id) == 1 then answer = -2 end -- see ../notes.lua
  answers[i] = answer
end
return answers
