-- What others may have written into a job's hash, brought into a form that BullMQ's scripts can count in.
local MOST = 100000
local function bounded(text, most)
  local number = tonumber(text)
  if not number or number ~= number or number < 0 then return '0' end
  return string.format('%.0f', math.min(math.floor(number), most))
end
-- Whether this can be a job's id: text (UTF-8), and not endless.
local function is_fit(id)
  if id == '' or #id > 512 then return false end
  if not string.find(id, '[\128-\255]') then return true end
  local i = 1
  while i <= #id do
    local first, second = string.byte(id, i, i + 1)
    local more = first < 0x80 and 0 or first < 0xC2 and -1 or first < 0xE0 and 1 or first < 0xF0 and 2 or first < 0xF5 and 3 or -1
    if more < 0 or i + more > #id then return false end
    if first == 0xE0 and second < 0xA0 or first == 0xED and second > 0x9F then return false end
    if first == 0xF0 and second < 0x90 or first == 0xF4 and second > 0x8F then return false end
    if string.find(string.sub(id, i + 1, i + more), '[^\128-\191]') then return false end
    i = i + more + 1
  end
  return true
end
local function is_parent(text)
  local found, parent = pcall(cjson.decode, text or '')
  return found and type(parent) == 'table' and type(parent['id']) == 'string' and type(parent['queueKey']) == 'string'
end
-- Whether there is a hash that can be worked with.
local function mend(id)
  local job = base .. id
  local kind = rcall('TYPE', job)['ok']
  if kind ~= 'hash' then return kind == 'none' end
  for field, most in pairs({ats = MOST, atm = MOST, stc = MOST, priority = 2097152}) do
    local value = rcall('HGET', job, field)
    if value and not (#value < 8 and string.match(value, '^%d+$')) then rcall('HSET', job, field, bounded(value, most)) end
  end
  local parent = rcall('HMGET', job, 'parentKey', 'parent')
  if (parent[1] or parent[2]) and not is_parent(parent[2]) then rcall('HDEL', job, 'parentKey', 'parent') end
  return true
end
-- Due jobs lose their place among the delayed before they get one among the waiting: what BullMQ would stumble over on
-- the way would take those behind it along. Whether there may be more of them.
local function mend_due(now)
  local delayed = base .. 'delayed'
  local due = rcall('ZRANGEBYSCORE', delayed, '-inf', (now + 1) * 0x1000 - 1, 'LIMIT', 0, 1000)
  for _, id in ipairs(due) do
    local priority = redis.pcall('HGET', base .. id, 'priority')
    if type(priority) == 'table' then
      rcall('ZREM', delayed, id)
      rcall('LPUSH', base .. 'wait', id)
    elseif priority and not (#priority < 8 and string.match(priority, '^%d+$')) then
      mend(id)
    end
  end
  if #due > 0 and tonumber(rcall('ZSCORE', delayed, due[1]) or 0) < 0 then
    for _, id in ipairs(rcall('ZRANGEBYSCORE', delayed, '-inf', '(0', 'LIMIT', 0, 1000)) do rcall('ZADD', delayed, 0, id) end
  end
  return #due == 1000
end
