-- What every script on a lock with a queue begins with: its keys and arguments, and the record as it is now.
--
-- KEYS  1 the lock: a string, so that every client of the plain layout sees it as held. On a mutex, the value is the id of its holder's
--         claim. On any other kind it is the mark that the record names: the holders count only while the lock has that value.
--       2 the record, a hash. All times in it are in server microseconds. Its fields:
--           token                         the largest token
--           floor                         the smallest token that may still be drawn, if an operator has raised it
--           kind, limit                   of the lock
--           id, flags, owner, meta, ttl   of a mutex's holder or promoted claim
--           mark, sum                     of any other kind: the mark, and the weight of all holders
--           line                          exists while claims wait
--           bar                           the tombstones: ids of released claims, which must not be granted any more
--           kept                          until when all keys are kept
--           quiet                         exists if the lock may be quiet, see below
--           left_for                      "TIME ID": when the lock was left free for a plain claim in the queue, and for which one
--           turn                          when foreign clients last had a turn, see release_queued.lua
--           roll, rollend, rollat         of a roll call, see queue.lua: when it began, when it ends, how far its result was applied
--           swept, sweptto                when a full queue was last trimmed, and how far
--           ballot                        from a Redlock: the largest number of a round
--           ~ID, =ID, notes, noted, unsure   notes of broken claims, and the reasons, see notes.lua
--       3 the claims: id -> JSON, of all that wait, and of the holders of a read-write lock or semaphore; '?' .. id -> when a waiting
--         claim last gave a sign of life after it joined the queue, in server microseconds
--       4 the holders of a read-write lock or semaphore: id -> expiry, in server microseconds
--       5 the queue: id -> when it joined, in server microseconds; no two are equal
-- ARGV  1 PUBLISH or SPUBLISH  2 how long all keys are kept at least, in ms  3 confirm window in ms  4 maximum of holders
--       5 maximum of waiting claims  6 claim id
--
-- A claim's flags are letters: a, it is asked to release the lock; b, it was broken gracefully; c, it was promoted; d, it is detached.
--
-- The record's key is also the name of the lock's channel, to which all clients that wait listen. With ':' and a session it is the
-- channel of one client. A lock that becomes free is no message: all waiters stand in the queue. The messages:
--   turn ID        this claim was promoted: it confirms
--   next ID MS     this claim is the next after the promoted ones or has become a near one, or foreign clients have a turn: it looks again
--                  after MS
--   roll MS        a roll call: all claims in the queue give a sign of life, spread over MS
--
-- Defines names for the keys and arguments (LOCK to MAX_WAITERS), the constants SOON, NEAR, MAX_TURN, DAY and HOUR, the functions text, has_flag, next_token,
-- is_tombstoned and next_score, and:
--   call                 redis.call
--   now                  the server's time in microseconds
--   value                the lock's value; false if there is none
--   is_empty             value is false, but the key may exist with an empty value, a foreign client's: queue.lua finds that out
--   id, token, flags     of the record: a mutex's holder or promoted claim, the largest token, that claim's flags
--   has_queue            whether claims wait
--   was_broken           whether an operator has broken the claim ARGV[6]
--   kept_until           when the keys expire, in server microseconds
--   quiet                see below
--   turn, turn_value     of the field turn: a time in server microseconds, and a value of the lock; nil if there is none
--   left_for_at          of the field left_for: a time in server microseconds; nil if there is none
--   left_for             of the same: the id of a claim; nil if there is none
--   left_free            the lock is free and claims wait, but it is left to foreign clients until turn
--   stored               the fields of the record as they were read
local LOCK, RECORD, CLAIMS, HOLDERS, QUEUE = unpack(KEYS)
local PUBLISH, CHANNEL, KEEP, WINDOW, MAX_HOLDERS, MAX_WAITERS = ARGV[1], RECORD, ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
-- A claim that joined the queue, or for which the lock was left free, less than this ago, in microseconds, runs its script soon. It needs
-- no further message.
local SOON = 500000
-- The claims at the first places are near. They look again soon, and when the holder may have expired (nearPlaces in acquire.go). A claim
-- that last looked when it was far behind does not know that it is near: the script by which it becomes that notifies it. So the next
-- claims may be dead, all but one of the near ones, and the queue still moves on in time.
local NEAR = 5
-- The longest time, in microseconds, for which a lock is left to foreign clients: even if the server's clock is set back.
local MAX_TURN = 1000000
-- In ms. The claims are kept for a day less than the record. No expiry is moved more often than once per hour.
local DAY, HOUR = 86400000, 3600000
local call = redis.call

-- The server's clock decides, so that the clocks of clients do not matter. All clients see the same clock, until a
-- failover.
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
-- text writes a number with all its digits: Lua itself would round one with more than 14.
local function text(n) return string.format('%.0f', n) end
local function has_flag(flags, f) return string.find(flags, f, 1, true) ~= nil end

-- If the key has another type, value is a table with the error. No value of ours has 1024 bytes, so a large foreign
-- value is not read as a whole.
local value = redis.pcall('GETRANGE', LOCK, 0, 1023)
local is_empty = value == ''
if is_empty then value = false end
local stored = call('HMGET', RECORD, 'id', 'token', 'flags', 'line', 'bar', 'kept', 'quiet', '~' .. ARGV[6], 'floor', 'turn', 'left_for')
local id, token, flags, has_queue = stored[1], tonumber(stored[2]) or 0, stored[3] or '', stored[4]
local tombstones, kept_until, was_broken = stored[5], tonumber(stored[6]) or 0, stored[8]

-- A lock is quiet if it is a mutex that is only held, handed over and waited for, without a mark or a roll call, and no expiry has to be
-- moved. That is the usual case. For it acquire_queued.lua and release_queued.lua have a short way, which is done before the rest is read
-- and set up: to do that takes Redis longer than the short way.
local quiet = stored[7] and kept_until > now + KEEP * 1000

local turn, turn_value
if stored[10] then turn, turn_value = string.match(stored[10], '^(%d+) (.*)$') end
turn = tonumber(turn)
local left_free = turn and turn_value == '' and has_queue and not value and now < turn and turn <= now + MAX_TURN

local left_for_at, left_for
if stored[11] then left_for_at, left_for = string.match(stored[11], '^(%d+) (.*)$') end
left_for_at = tonumber(left_for_at)

-- next_token is the token of a claim that is granted now: see acquire.lua.
local function next_token() return math.max(token + 1, now, tonumber(stored[9]) or 0) end

local function is_tombstoned(who) return tombstones and string.find(tombstones, who, 1, true) ~= nil end

-- next_score is the score of a claim that joins the queue now: the time, or one more than the largest score if that is more.
local function next_score()
  local score = call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')[2]
  return text(math.max((tonumber(score) or 0) + 1, now))
end
