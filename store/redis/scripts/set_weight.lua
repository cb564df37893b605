-- Changes the weight of a holder. The weight of a promoted claim counts as held. A larger weight must fit in the limit
-- next to the other holders. It need not wait for claims in the queue, since holders are ahead of them.
--- include shared/state.lua
--- include shared/notes.lua
--- include shared/foreign.lua
--- include shared/queue.lua
local HELD, DONE, GONE, TAKEN, BROKEN, LATE = 0, 1, 10, 11, 12, 13
local me, mytoken, weight = ARGV[6], ARGV[7], tonumber(ARGV[8])
local change = ARGV[9] -- stored as text: JSON would round the number
settle()
local answer
if held == 'mutex' and id == me and not has_flag(flags, 'c') then
  answer = {text(token) ~= mytoken and TAKEN or has_flag(flags, 'b') and BROKEN or DONE}
elseif held == 'shared' and call('ZSCORE', HOLDERS, me) then
  local c = read_claim(me)
  if c.token ~= mytoken then
    answer = {TAKEN}
  elseif has_flag(c.flags or '', 'b') then
    answer = {BROKEN}
  elseif change + 0 < (tonumber(c.change) or 0) then
    answer = {LATE}
  elseif weight > c.w and held_weight - c.w + weight > limit then
    answer = {HELD, time_left(), waiters, 0}
    for _, s in ipairs(describe_holders()) do answer[#answer + 1] = s end
  else
    held_weight = held_weight - c.w + weight
    c.w, c.change = weight, change
    write_claim(me, c)
    answer = {DONE}
  end
else
  answer = {was_broken and BROKEN or held == 'none' and GONE or TAKEN}
end
promote_next()
save()
return answer
