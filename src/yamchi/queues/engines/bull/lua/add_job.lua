-- bullmq: addStandardJob addDelayedJob addPrioritizedJob
-- Adds one job by the script that BullMQ has for its kind; 1 if it is new, 0 if its id was there.
local ADDERS = {
  standard = {addStandardJob, named(base, {'wait', 'paused', 'meta', 'id', 'completed', 'delayed', 'active', 'events', 'marker'})},
  delayed = {addDelayedJob, named(base, {'marker', 'meta', 'id', 'delayed', 'completed', 'events'})},
  prioritized = {addPrioritizedJob, named(base, {'marker', 'meta', 'id', 'prioritized', 'delayed', 'completed', 'active', 'events', 'pc'})},
}
local function add_job(kind, id, packed, data, opts, expires_at)
  local is_new = rcall('EXISTS', base .. id) == 0
  local adder = ADDERS[kind]
  adder[1](adder[2], {packed, data, opts})
  if is_new and expires_at ~= '' then rcall('HSET', base .. id, 'ymExpiresAt', expires_at) end
  return is_new and 1 or 0
end
