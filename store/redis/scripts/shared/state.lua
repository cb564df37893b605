-- What every script on a lock with a queue begins with: its keys and arguments, and the record as it is now.
--
-- KEYS  1 the lock: a string, so that every client of the plain layout sees it as held. On a mutex, the value is the id of its holder's
--         claim. On any other kind it is the mark that the record names: the holders count only while the lock has that value.
--       2 the record: a hash with the largest token, kind and limit, mark, weight of all holders, and a mutex's holder; whether claims
--         wait; until when all keys are kept, in server microseconds; whether the lock is quiet; and the notes of broken claims (see
--         notes.lua)
--       3 the claims: id -> JSON, of all that wait and of the holders that are no mutex's; '?' .. id -> when a waiting claim was last
--         heard of after it came, in server microseconds
--       4 the holders that are no mutex's: id -> expiry, in server microseconds
--       5 the queue: id -> when it came, in server microseconds; no two are equal
--         The record's key is also the name of the lock's channel; with ':' and a session, of the channel of one client.
-- ARGV  1 PUBLISH or SPUBLISH  2 how long all keys are kept at least, in ms  3 confirm window in ms  4 most holders
--       5 most waiting claims  6 claim id
--
-- Gives: the names of all of these (LOCK ... MAX_WAITERS), the constants SOON, DAY and HOUR, call, now, text, has_flag, is_tombstoned,
-- next_score, and this state:
--   value                the lock's value; false if there is none
--   id, token, flags     of the record: a mutex's holder or promoted claim, the largest token, that claim's flags
--   has_queue            claims wait
--   was_broken           an operator has broken the claim ARGV[6]
--   kept_until           when the keys expire, in server microseconds
--   quiet                see below
--   stored               the fields of the record as they were read
local LOCK, RECORD, CLAIMS, HOLDERS, QUEUE = unpack(KEYS)
local PUBLISH, CHANNEL, KEEP, WINDOW, MAX_HOLDERS, MAX_WAITERS = ARGV[1], RECORD, ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
-- A claim that came less than this ago, in microseconds, looks again early enough, and needs no notice.
local SOON = 500000
-- In ms. The claims are kept for a day less than the record. No expiry is moved more often than once per hour.
local DAY, HOUR = 86400000, 3600000
local call = redis.call

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(n) return string.format('%.0f', n) end
local function has_flag(flags, f) return string.find(flags, f, 1, true) ~= nil end

-- If the key is of another type, value is a table with the error. No value of ours is as long as 1024 bytes.
local value = redis.pcall('GETRANGE', LOCK, 0, 1023)
if value == '' and call('EXISTS', LOCK) == 0 then value = false end
local stored = call('HMGET', RECORD, 'id', 'token', 'flags', 'line', 'bar', 'kept', 'quiet', '~' .. ARGV[6])
local id, token, flags, has_queue = stored[1], tonumber(stored[2]) or 0, stored[3] or '', stored[4]
local tombstones, kept_until, was_broken = stored[5], tonumber(stored[6]) or 0, stored[8]

-- A lock is quiet if it is a mutex that is only held, handed over and waited for. Almost all scripts find it so, and are done before
-- the rest is read and set up: that takes Redis longer than what they do.
local quiet = stored[7] and kept_until > now + KEEP * 1000

local function is_tombstoned(who) return tombstones and string.find(tombstones, who, 1, true) ~= nil end

-- next_score is the score of a claim that comes to the queue now: the time, and more than all scores there.
local function next_score()
  local score = call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')[2]
  return text(math.max((tonumber(score) or 0) + 1, now))
end
