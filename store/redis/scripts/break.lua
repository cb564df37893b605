-- An operator's act on one claim.
--
-- ARGV  6 claim id, or 'f.' and the digest of a foreign value  7 mode: '0' mark, '1' force, '2' ask
-- Gives 1 done; 0 it does not stand; -1 a foreign holder cannot be told; -2 no lock client makes what stands there
local me, mode = ARGV[6], ARGV[7]
anyway()
settle()

local function add(f, flag) return has(f, flag) and f or f .. flag end
local flag = mode == '0' and 'b' or 'a'

-- dismiss is what becomes of a waiting claim: its client is told at once, if it listens, and else when it comes again.
local function dismiss(c)
  note(RECORD, me, c and c.ttl, now)
  if c then tell(c.session, 'call ' .. me) end
end

local answer = 1
if string.sub(me, 1, 2) == 'f.' then
  local _, digest, whole
  if held == 'foreign' then _, digest, whole = foreign(LOCK) end
  if 'f.' .. (digest or '') ~= me then
    answer = 0
  elseif mode ~= '1' then
    answer = -1
  elseif not whole then
    answer = -2
  else
    call('DEL', LOCK)
    held, freed = 'none', true
  end
elseif held == 'mutex' and id == me then
  if mode == '2' or mode == '0' and not has(flags, 'c') then
    flags = add(flags, flag)
    call('HSET', RECORD, 'flags', flags)
  else
    if has(flags, 'c') then
      dismiss(claim(me))
    else
      note(RECORD, me, call('HGET', RECORD, 'ttl'), now)
    end
    go()
    draw()
  end
elseif held == 'shared' and call('ZSCORE', HOLDERS, me) then
  local c = claim(me)
  if mode == '2' or mode == '0' and c.state ~= 'called' then
    c.flags = add(c.flags or '', flag)
    put(me, c)
  else
    if c.state == 'called' then
      dismiss(c)
    else
      note(RECORD, me, c.ttl, now)
    end
    drop(me)
    draw()
    unanswered = false
    if call('ZCARD', HOLDERS) == 0 then
      call('DEL', LOCK)
      empty()
      held = 'none'
    end
  end
elseif inline(me) then
  local c = claim(me)
  if mode == '2' then
    c.flags = add(c.flags or '', flag)
    put(me, c)
  else
    forget(me)
    dismiss(c)
  end
else
  answer = 0
end
advance()
finish()
return answer
