-- What the steps on a lock with a line begin with, and what they work on.
--
-- KEYS  1 the lock: a string, so that every client of the plain layout sees it as held. A mutex: its holder's claim id.
--         Any other kind: the mark that its record names; the holders count only while the lock carries it.
--       2 the record: a hash with the largest token, kind and limit, mark, weight of all holders, a mutex's holder; whether
--         claims stand in line; until when all this is kept, in server microseconds; whether the lock is quiet; and the
--         notes of claims that were broken (see notes.lua)
--       3 claims: id -> JSON, of all in line and of the holders that are no mutex's; '?' .. id -> the last sign of life of one
--         in line since it came, in server microseconds
--       4 the holders that are no mutex's: id -> end, in server microseconds
--       5 the line: id -> when it came, in server microseconds, and no two alike
--         The record's key is the name of the lock's channel, too; with ':' and a session, of that of one client.
-- ARGV  1 PUBLISH or SPUBLISH  2 how long all this is kept at least, in ms  3 confirm window in ms  4 most holders
--       5 most in line  6 claim id
local LOCK, RECORD, CLAIMS, HOLDERS, LINE = unpack(KEYS)
local PUBLISH, CHANNEL, KEEP, WINDOW, MAXHOLDERS, MAXLINE = ARGV[1], RECORD, ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local SOON = 500000 -- microseconds: who came to stand in line less than that ago looks again in time, without being told to
local DAY, HOUR = 86400000, 3600000 -- milliseconds: the claims are kept for a day less than the record, and no expiry is moved more often than hourly
local call = redis.call

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(n) return string.format('%.0f', n) end
local function has(flags, f) return string.find(flags, f, 1, true) ~= nil end

local value = redis.pcall('GETRANGE', LOCK, 0, 1023) -- a table: an error, since it is of another type. None of ours is as long
if value == '' and call('EXISTS', LOCK) == 0 then value = false end
local h = call('HMGET', RECORD, 'id', 'token', 'flags', 'line', 'bar', 'kept', 'quiet', '~' .. ARGV[6])
local id, token, flags, inuse, bars, kept = h[1], tonumber(h[2]) or 0, h[3] or '', h[4], h[5], tonumber(h[6]) or 0

local ended = h[8] -- a note that the claim was broken

-- quiet: a mutex, and nothing is going on but that it is held, handed on and waited for. Almost all steps find it so, and
-- see to it before the rest is even read and set up: that takes Redis longer than what they do.
local quiet = h[7] and kept > now + KEEP * 1000

local function barred(who) return bars and string.find(bars, who, 1, true) ~= nil end

-- last is the place of who comes to stand in line next: when it comes, and later than all who stand there.
local function last()
  local score = call('ZREVRANGE', LINE, 0, 0, 'WITHSCORES')[2]
  return text(math.max((tonumber(score) or 0) + 1, now))
end
