-- bullmq: addStandardJob
-- Dead letters are waiting jobs of the queue "<queue>.dlq", so Bull Board and Node can read them as they are.
local dlq = string.sub(base, 1, -2) .. '.dlq:'
local function drop_letter(id)
  if rcall('LREM', dlq .. 'wait', 0, id) == 0 then return 0 end
  rcall('DEL', dlq .. id, dlq .. id .. ':logs')
  return 1
end
local function write_letter(id, packed, body, opts, reason)
  if drop_letter(id) == 0 then rcall('DEL', dlq .. id) end
  local keys = named(dlq, {'wait', 'paused', 'meta', 'id', 'completed', 'delayed', 'active', 'events', 'marker'})
  addStandardJob(keys, {packed, body, opts})
  rcall('HSET', dlq .. id, 'ymError', reason)
end
