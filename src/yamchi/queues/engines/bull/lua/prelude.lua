-- What every script begins with. KEYS[1] is the queue's key prefix, such as "bull:mail:".
local rcall = redis.call
local base = KEYS[1]
local function named(prefix, names)
  local keys = {}
  for i, name in ipairs(names) do keys[i] = prefix .. name end
  return keys
end
-- Lists of keys by what they are for, each made when it is first asked for.
local function when_needed(lists)
  return setmetatable({}, {__index = function(made, what)
    made[what] = named(base, lists[what])
    return made[what]
  end})
end
-- Redis's own clock decides what is due, so that workers need not agree on the time.
local function moment()
  local time = rcall('TIME')
  return string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
end
