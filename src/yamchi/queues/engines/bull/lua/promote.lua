-- bullmq: promote
-- parts: mending
-- ARGV: ids of delayed jobs. The answer: 1 for each that is due now.
local now = moment()
local keys = named(base, {'delayed', 'wait', 'paused', 'meta', 'prioritized', 'active', 'pc', 'events', 'marker'})
local outcome = {}
for i, id in ipairs(ARGV) do
  outcome[i] = mend(id) and promote(keys, {base, id}) == 0 and 1 or 0
  if outcome[i] == 1 then rcall('HSET', base .. id, 'ymDue', now) end
end
return outcome
