-- bullmq: addStandardJob
-- Dead letters are waiting jobs of the queue "<queue>.dlq", so Bull Board and Node can read them as they are.
local dlq = string.sub(base, 1, -2) .. '.dlq:'
local function drop_letter(id)
  if rcall('LREM', dlq .. 'wait', 1, id) == 0 then return 0 end
  rcall('DEL', dlq .. id, dlq .. id .. ':logs')
  return 1
end
-- Looking for an id in the list costs its length, so that is done only for a letter that is there.
local function drop_letter_if_any(id)
  if rcall('EXISTS', dlq .. id) == 1 then drop_letter(id) end
end
local function write_letter(id, packed, body, opts, reason)
  drop_letter_if_any(id)
  rcall('DEL', dlq .. id)
  local keys = named(dlq, {'wait', 'paused', 'meta', 'id', 'completed', 'delayed', 'active', 'events', 'marker'})
  addStandardJob(keys, {packed, body, opts})
  rcall('HSET', dlq .. id, 'ymError', reason)
end
