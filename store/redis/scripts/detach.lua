-- Leaves a holder in place without renewals, for as long as the client says. The flag 'd' marks it. The duration is
-- stored as its TTL, so that a late renewal of the same claim does not shorten it.
--
-- KEYS  as in shared/state.lua
-- ARGV  1-5 as in shared/state.lua  6 claim id  7 token  8 for how long, in ms
-- Replies DONE; GONE; TAKEN: the lock is another claim's; BROKEN
--- include shared/state.lua
--- include shared/notes.lua
--- include shared/foreign.lua
--- include shared/queue.lua
local GONE, DONE, TAKEN, BROKEN = 0, 1, -1, -2
local me, mytoken, ms = ARGV[6], ARGV[7], tonumber(ARGV[8])
settle()
local answer
if held == 'mutex' and id == me and not has_flag(flags, 'c') then
  if text(token) ~= mytoken then
    answer = TAKEN
  elseif has_flag(flags, 'b') then
    answer = BROKEN
  else
    if not has_flag(flags, 'd') then flags = flags .. 'd' end
    call('PEXPIRE', LOCK, ms)
    call('HSET', RECORD, 'flags', flags, 'ttl', text(ms))
    answer = DONE
  end
elseif held == 'shared' and call('ZSCORE', HOLDERS, me) then
  local c = read_claim(me)
  local f = c.flags or ''
  if c.token ~= mytoken then
    answer = TAKEN
  elseif has_flag(f, 'b') then
    answer = BROKEN
  else
    c.ttl, c.flags = ms, has_flag(f, 'd') and f or f .. 'd'
    write_claim(me, c)
    call('ZADD', HOLDERS, text(now + ms * 1000), me)
    answer = DONE
  end
else
  answer = was_broken and BROKEN or held == 'none' and GONE or TAKEN
end
promote_next()
save()
return answer
