-- bullmq: cleanJobsInSet
-- parts: finish_beside stray
-- ARGV: moment, how many at most, then the sets. The answer: how many went.
local gone, limit = 0, tonumber(ARGV[2])
-- What BullMQ's script would stop at, among those that it takes next.
local function drop_strays(set, count)
  local is_list = set == 'wait' or set == 'paused'
  local ids = is_list and rcall('LRANGE', base .. set, -count, -1) or rcall('ZRANGEBYSCORE', base .. set, 0, '+inf', 'LIMIT', 0, count)
  local dropped = 0
  for _, id in ipairs(ids) do
    if not mend(id) then dropped = dropped + drop_stray(id) end
  end
  return dropped
end
local function clean_beside(set)
  local ids = rcall('ZRANGEBYSCORE', base .. set, '-inf', ARGV[1], 'LIMIT', 0, limit - gone)
  for _, id in ipairs(ids) do
    forget(id)
    rcall('ZREM', base .. set, id)
  end
  return #ids
end
for i = 3, #ARGV do
  local set = ARGV[i]
  if gone >= limit then break end
  if string.sub(set, 1, 3) == 'ym:' then
    gone = gone + clean_beside(set)
  else
    gone = gone + drop_strays(set, limit - gone)
    if gone >= limit then break end
    gone = gone + #cleanJobsInSet({base .. set, base .. 'events', base .. 'repeat'}, {base, ARGV[1], tostring(limit - gone), set})
  end
end
return gone
