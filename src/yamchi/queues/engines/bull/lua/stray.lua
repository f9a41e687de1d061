-- parts: state mending
-- An id under which somebody wrote what is no hash: BullMQ's scripts would stop there, and do nothing for those behind it.
-- It is taken off every list; what lies there is left alone, for it may be a key of the queue's own.
local function drop_stray(id)
  local gone = rcall('LREM', base .. 'wait', 0, id) + rcall('LREM', base .. 'paused', 0, id)
  for _, set in ipairs(ZSETS) do gone = gone + rcall('ZREM', base .. set, id) end
  return gone > 0 and 1 or 0
end
