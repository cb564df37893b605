-- The same, where the lock is not quiet.
settle()
local stood = true
if held == 'mutex' and id == me then
  go()
elseif held == 'shared' and call('ZSCORE', HOLDERS, me) then
  drop(me)
  if call('ZCARD', HOLDERS) == 0 then
    call('DEL', LOCK)
    empty()
    held = 'none'
  end
elseif inline(me) then
  forget(me)
else
  stood = false
end
if ARGV[7] == '1' then bar(me) end
advance()
finish()
if stood then return 1 end
if ended then return 2 end
return (tonumber(call('HGET', RECORD, 'unsure')) or 0) > now and 8 or 0
