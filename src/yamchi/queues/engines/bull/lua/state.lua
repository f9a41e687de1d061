-- Where a job is. What is nowhere else waits, so the wait list, which may be long, is never searched.
local ZSETS = {'completed', 'failed', 'delayed', 'ym:cancelled', 'ym:expired', 'prioritized', 'waiting-children'}
local function is_running(id)
  if rcall('EXISTS', base .. id .. ':lock') == 1 then return true end
  for _, active in ipairs(rcall('LRANGE', base .. 'active', 0, -1)) do
    if active == id then return true end
  end
  return false
end
local function state_of(id)
  for _, name in ipairs(ZSETS) do
    local score = rcall('ZSCORE', base .. name, id)
    if score then return name, score end
  end
  return is_running(id) and 'active' or 'wait', '0'
end
