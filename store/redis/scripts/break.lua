-- An operator's act on one claim.
--
-- KEYS  as in shared/state.lua
-- ARGV  1-5 as in shared/state.lua  6 claim id, or 'f.' and the digest of a foreign value  7 mode: '0' graceful, '1'
--       force, '2' request a release  8 why, for the claim's client; empty if nobody says it
-- Replies DONE; NOT_FOUND; FOREIGN: a foreign holder can only be removed by force; NO_LOCK: no lock client makes what
--       is under the key
--- include shared/state.lua
--- include shared/notes.lua
--- include shared/foreign.lua
--- include shared/queue.lua
local NOT_FOUND, DONE, FOREIGN, NO_LOCK = 0, 1, -1, -2
local GRACEFUL, FORCE, REQUEST = '0', '1', '2'
local me, mode, reason = ARGV[6], ARGV[7], ARGV[8]
-- An operator must be able to remove a lock from a server that is out of memory.
write_when_full()
settle()

local flag = mode == GRACEFUL and 'b' or 'a'
local function add_flag(f) return has_flag(f, flag) and f or f .. flag end

-- note_reason notes why a claim of this TTL is broken.
local function note_reason(ttl)
  if reason ~= '' and mode ~= REQUEST then add_note(RECORD, me, ttl, now, reason) end
end

-- note_waiter notes that a waiting or promoted claim was ended, and notifies its client. A client that does not listen
-- learns of it when it runs its script again.
local function note_waiter(c)
  add_note(RECORD, me, c and c.ttl, now)
  if c then notify(c.session, 'turn ' .. me) end
end

-- A graceful break of a holder sets a flag, which its next renewal returns. A promoted claim holds nothing yet, so it
-- is ended at once.
local answer = DONE
if string.sub(me, 1, 2) == 'f.' then
  local _, digest, whole
  if held == 'foreign' then _, digest, whole = describe_foreign(LOCK) end
  if 'f.' .. (digest or '') ~= me then
    answer = NOT_FOUND
  elseif mode ~= FORCE then
    answer = FOREIGN
  elseif not whole then
    answer = NO_LOCK
  else
    call('DEL', LOCK)
    held = 'none'
  end
elseif held == 'mutex' and id == me then
  note_reason(call('HGET', RECORD, 'ttl'))
  if mode == REQUEST or mode == GRACEFUL and not has_flag(flags, 'c') then
    flags = add_flag(flags)
    call('HSET', RECORD, 'flags', flags)
  else
    if has_flag(flags, 'c') then
      note_waiter(read_claim(me))
    else
      add_note(RECORD, me, call('HGET', RECORD, 'ttl'), now)
    end
    -- The token rises, so that a resource which checks tokens refuses the old holder once a newer token was used.
    remove_mutex_holder()
    draw_token()
  end
elseif held == 'shared' and call('ZSCORE', HOLDERS, me) then
  local c = read_claim(me)
  note_reason(c.ttl)
  if mode == REQUEST or mode == GRACEFUL and c.state ~= 'promoted' then
    c.flags = add_flag(c.flags or '')
    write_claim(me, c)
  else
    if c.state == 'promoted' then
      note_waiter(c)
    else
      add_note(RECORD, me, c.ttl, now)
    end
    remove_holder(me)
    draw_token()
    -- The promoted claim did not fail to answer: it was removed here. No roll call is needed.
    unanswered = false
    clear_if_unheld()
  end
elseif is_queued(me) then
  local c = read_claim(me)
  if mode == REQUEST then
    c.flags = add_flag(c.flags or '')
    write_claim(me, c)
  else
    remove_waiter(me)
    note_reason(c and c.ttl)
    note_waiter(c)
  end
else
  answer = NOT_FOUND
end
promote_next()
save()
return answer
