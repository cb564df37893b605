-- The step of a holder that wants more of the lock, or less. A claim that was called counts as if it held already.
--
-- ARGV  6 claim id  7 token  8 weight  9 the number of the change, which rises: one that comes late changes nothing
-- Gives {1} done; {0, ms left, claims in line, 0, holders...} it does not fit; or the code of a loss: {10} gone; {11}
--       another's; {12} broken; {13} late
local me, mytoken, weight, change = ARGV[6], ARGV[7], tonumber(ARGV[8]), ARGV[9] -- as text: JSON would cut it short
settle()
local a
if held == 'mutex' and id == me and not has(flags, 'c') then
  a = {text(token) ~= mytoken and 11 or has(flags, 'b') and 12 or 1}
elseif held == 'shared' and call('ZSCORE', HOLDERS, me) then
  local c = claim(me)
  if c.token ~= mytoken then
    a = {11}
  elseif has(c.flags or '', 'b') then
    a = {12}
  elseif change + 0 < (tonumber(c.change) or 0) then
    a = {13}
  elseif weight > c.w and sum - c.w + weight > limit then
    a = {0, left(), waiting, 0}
    for _, s in ipairs(shown()) do a[#a + 1] = s end
  else
    sum = sum - c.w + weight
    c.w, c.change = weight, change
    put(me, c)
    a = {1}
  end
else
  a = {ended and 12 or held == 'none' and 10 or 11}
end
advance()
finish()
return a
