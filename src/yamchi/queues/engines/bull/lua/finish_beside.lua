-- parts: parent
-- Ends a job in a state that BullMQ does not have: `cancelled` or `expired`, kept in sorted sets of their own.
local function forget(id)
  local job = base .. id
  rcall('DEL', job, job .. ':logs', job .. ':dependencies', job .. ':processed', job .. ':failed', job .. ':unsuccessful')
end
local function drop_deduplication(id)
  local deduplication = rcall('HGET', base .. id, 'deid')
  if deduplication and rcall('GET', base .. 'de:' .. deduplication) == id then
    rcall('DEL', base .. 'de:' .. deduplication)
  end
end
local function keep_of(id)
  local found, opts = pcall(cjson.decode, rcall('HGET', base .. id, 'opts') or '{}')
  local keep = found and opts['removeOnFail']
  if type(keep) == 'table' then keep = keep['count'] end
  if keep == true then return 0 end
  return tonumber(keep) or -1
end
local function finish_beside(id, state, now)
  local set, keep = base .. 'ym:' .. state, keep_of(id)
  drop_deduplication(id)
  tell_parent(id, state, now)
  rcall('XADD', base .. 'events', 'MAXLEN', '~', 10000, '*', 'event', state, 'jobId', id)
  if keep == 0 then return forget(id) end -- said of this job, not of those before it
  rcall('HSET', base .. id, 'finishedOn', now)
  rcall('ZADD', set, now, id)
  if keep < 0 then return end
  for _, old in ipairs(rcall('ZREVRANGE', set, keep, -1)) do
    forget(old)
    rcall('ZREM', set, old)
  end
end
