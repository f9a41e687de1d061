-- parts: state finish_beside
-- ARGV: job ids. The answer: for each the state it is in now, or ''.
local now, outcome = moment(), {}
local function cancel(id)
  if rcall('EXISTS', base .. id) == 0 or not mend(id) then return '' end
  local state = state_of(id)
  if state == 'active' then
    rcall('HSET', base .. 'ym:cancelling', id, rcall('GET', base .. id .. ':lock') or '')
    return 'active'
  end
  local removed
  if state == 'delayed' or state == 'prioritized' then
    removed = rcall('ZREM', base .. state, id)
  elseif state == 'wait' then
    removed = rcall('LREM', base .. 'wait', 0, id) + rcall('LREM', base .. 'paused', 0, id)
  end
  if not removed or removed == 0 then return '' end
  finish_beside(id, 'cancelled', now)
  return 'cancelled'
end
for i, id in ipairs(ARGV) do outcome[i] = cancel(id) end
return outcome
