-- foreign names what another kind of client keeps under a key: its type, and a digest of what it is, without telling it, since it
-- may be a secret by which the lock can be released. It costs the same whatever stands there: of what no lock client makes, since
-- it is too large, only a part is looked at, and it is not whole then.
local function foreign(key)
  local kind = redis.call('TYPE', key).ok
  local text, whole = kind, false
  if kind == 'string' then
    local size = redis.call('STRLEN', key)
    whole = size <= 4096
    text = text .. ' ' .. size .. ' ' .. redis.call('GETRANGE', key, 0, 4095)
  elseif kind == 'hash' and redis.call('HLEN', key) <= 16 then
    whole = true
    local fields = redis.call('HKEYS', key)
    table.sort(fields)
    for _, field in ipairs(fields) do
      local size = redis.call('HSTRLEN', key, field)
      whole = whole and size <= 1024
      text = text .. ' ' .. #field .. ' ' .. field .. ' ' .. size .. ' ' .. (size <= 1024 and redis.call('HGET', key, field) or '')
    end
  end
  return kind, redis.sha1hex(text), whole
end
