-- bullmq: addStandardJob addDelayedJob addPrioritizedJob
-- Adds one job by the script that BullMQ has for its kind; 1 if it is new, 0 if its id was there.
local ADDERS = {standard = addStandardJob, delayed = addDelayedJob, prioritized = addPrioritizedJob}
local keys = when_needed({
  standard = {'wait', 'paused', 'meta', 'id', 'completed', 'delayed', 'active', 'events', 'marker'},
  delayed = {'marker', 'meta', 'id', 'delayed', 'completed', 'events'},
  prioritized = {'marker', 'meta', 'id', 'prioritized', 'delayed', 'completed', 'active', 'events', 'pc'},
})
local function add_job(kind, id, packed, data, opts, expires_at)
  local is_new = rcall('EXISTS', base .. id) == 0
  ADDERS[kind](keys[kind], {packed, data, opts})
  if is_new and expires_at ~= '' then rcall('HSET', base .. id, 'ymExpiresAt', expires_at) end
  return is_new and 1 or 0
end
