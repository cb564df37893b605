-- Defines describe_foreign.

-- describe_foreign describes what another kind of client keeps under a key: its type, a digest of its content, and whether all of it
-- was read. The content itself is not shown, since it may be a secret by which the lock can be released. The cost is bounded: no lock
-- client makes a large key, so of a large one only a part is read.
local function describe_foreign(key)
  local kind = redis.call('TYPE', key).ok
  local content, whole = kind, false
  if kind == 'string' then
    local size = redis.call('STRLEN', key)
    whole = size <= 4096
    content = content .. ' ' .. size .. ' ' .. redis.call('GETRANGE', key, 0, 4095)
  elseif kind == 'hash' and redis.call('HLEN', key) <= 16 then
    whole = true
    local fields = redis.call('HKEYS', key)
    table.sort(fields)
    for _, field in ipairs(fields) do
      local size = redis.call('HSTRLEN', key, field)
      whole = whole and size <= 1024
      content = content .. ' ' .. #field .. ' ' .. field .. ' ' .. size .. ' ' .. (size <= 1024 and redis.call('HGET', key, field) or '')
    end
  end
  return kind, redis.sha1hex(content), whole
end
