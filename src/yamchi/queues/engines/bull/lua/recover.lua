-- parts: mending refuse
-- Takes over running jobs whose lock has run out, for a moment, so that the caller can settle them like any others.
-- ARGV: token, lock duration, how many at most, now as text. The answer: {id, hash} of each.
local stalled, now = {}, moment()
for _, id in ipairs(rcall('LRANGE', base .. 'active', 0, -1)) do
  local job = base .. id
  if #stalled < tonumber(ARGV[3]) and rcall('EXISTS', job .. ':lock') == 0 then
    if rcall('EXISTS', job) == 0 then
      rcall('LREM', base .. 'active', 1, id)
    elseif not (is_fit(id) and mend(id)) then
      pcall(refuse, id, 'is no job', now, ARGV[4])
    else
      rcall('SET', job .. ':lock', ARGV[1], 'PX', ARGV[2])
      rcall('SREM', base .. 'stalled', id)
      rcall('HINCRBY', job, 'stc', 1)
      if rcall('HEXISTS', base .. 'ym:cancelling', id) == 1 then rcall('HSET', base .. 'ym:cancelling', id, ARGV[1]) end
      rcall('XADD', base .. 'events', '*', 'event', 'stalled', 'jobId', id)
      stalled[#stalled + 1] = {id, rcall('HGETALL', job)}
    end
  end
end
return stalled
