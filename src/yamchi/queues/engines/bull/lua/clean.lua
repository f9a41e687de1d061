-- bullmq: cleanJobsInSet
-- parts: finish_beside
-- ARGV: moment, how many at most, then the sets. The answer: how many went.
local gone, limit = 0, tonumber(ARGV[2])
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
    gone = gone + #cleanJobsInSet({base .. set, base .. 'events', base .. 'repeat'}, {base, ARGV[1], tostring(limit - gone), set})
  end
end
return gone
