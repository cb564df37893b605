-- Leaves a holder standing with nobody behind it, for as long as it says.
--
-- ARGV  6 claim id  7 token  8 for how long, in ms
-- Gives 1 done; 0 gone; -1 another's; -2 broken
local me, mytoken, ms = ARGV[6], ARGV[7], tonumber(ARGV[8])
settle()
local answer
if held == 'mutex' and id == me and not has(flags, 'c') then
  if text(token) ~= mytoken then
    answer = -1
  elseif has(flags, 'b') then
    answer = -2
  else
    if not has(flags, 'd') then flags = flags .. 'd' end
    call('PEXPIRE', LOCK, ms)
    call('HSET', RECORD, 'flags', flags, 'ttl', text(ms))
    answer = 1
  end
elseif held == 'shared' and call('ZSCORE', HOLDERS, me) then
  local c = claim(me)
  local f = c.flags or ''
  if c.token ~= mytoken then
    answer = -1
  elseif has(f, 'b') then
    answer = -2
  else
    c.ttl, c.flags = ms, has(f, 'd') and f or f .. 'd'
    put(me, c)
    call('ZADD', HOLDERS, text(now + ms * 1000), me)
    answer = 1
  end
else
  answer = ended and -2 or held == 'none' and 0 or -1
end
advance()
finish()
return answer
