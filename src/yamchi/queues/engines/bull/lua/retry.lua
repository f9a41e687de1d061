-- bullmq: reprocessJob
-- parts: state letters mending
-- ARGV: ids of finished jobs. The answer: 1 for each that is back in the queue.
local now, outcome = moment(), {}
local PROPERTY = {completed = 'returnvalue', failed = 'failedReason', ['ym:cancelled'] = 'failedReason', ['ym:expired'] = 'failedReason'}
local function retry(id)
  local state = state_of(id)
  if not PROPERTY[state] or not mend(id) then return 0 end
  local keys = named(base, {id, 'events', state, 'wait', 'meta', 'active', 'marker', 'prioritized', 'pc'})
  if reprocessJob(keys, {id, 'LPUSH', PROPERTY[state], string.gsub(state, '^ym:', ''), '1', '1'}) ~= 1 then return 0 end
  rcall('HDEL', base .. id, 'stc', 'defa', 'failedReason', 'returnvalue', 'stacktrace', 'progress', 'ymSlotted', 'ymLetter')
  rcall('HSET', base .. id, 'ymDue', now)
  rcall('HDEL', base .. 'ym:cancelling', id)
  drop_letter_if_any(id)
  return 1
end
for i, id in ipairs(ARGV) do outcome[i] = retry(id) end
return outcome
