-- bullmq: removeChildDependency
-- parts: mending
-- Tells the parent of a flow that a child of it was cancelled or has expired. What a child that failed would mean to the parent, as the
-- child's options say, this means too; where they say nothing, the parent goes on as it does without a child that was removed.
local function parent_of(id)
  local text = rcall('HGET', base .. id, 'parent')
  return is_parent(text) and cjson.decode(text) or nil
end
-- At once, though other children may still be on their way.
local function move_parent(queue, id, is_to_fail)
  local left = rcall('ZREM', queue .. 'waiting-children', id)
  if left == 0 and is_to_fail then left = rcall('ZREM', queue .. 'delayed', id) end
  if left == 0 then return end
  rcall('RPUSH', queue .. 'wait', id)
  if rcall('HEXISTS', queue .. 'meta', 'paused') == 0 then rcall('ZADD', queue .. 'marker', 0, '0') end
  rcall('XADD', queue .. 'events', '*', 'event', 'waiting', 'jobId', id, 'prev', 'waiting-children')
end
local function tell_parent(id, state, now)
  local parent = parent_of(id)
  if not parent then return end
  local child, queue = base .. id, parent['queueKey'] .. ':'
  local key = queue .. parent['id']
  if rcall('SISMEMBER', key .. ':dependencies', child) == 0 or rcall('EXISTS', key) == 0 then return end
  if parent['fpof'] then
    rcall('ZADD', key .. ':unsuccessful', now, child)
    if not rcall('ZSCORE', queue .. 'failed', parent['id']) then rcall('HSET', key, 'defa', 'child ' .. child .. ' ' .. state) end
  elseif parent['cpof'] or parent['idof'] then
    rcall('HSET', key .. ':failed', child, state)
  end
  if parent['fpof'] or parent['cpof'] then
    rcall('SREM', key .. ':dependencies', child)
    move_parent(queue, parent['id'], parent['fpof'])
  else
    removeChildDependency({base}, {child, key})
  end
end
