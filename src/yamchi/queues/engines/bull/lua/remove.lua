-- bullmq: removeJob
-- parts: stray
-- ARGV: job ids. The answer: 1 for each that is gone now.
local outcome = {}
local function remove(id)
  if rcall('EXISTS', base .. id) == 0 or is_running(id) then return 0 end
  if not mend(id) then return drop_stray(id) end
  if removeJob({base .. id, base .. 'repeat'}, {id, '0', base}) ~= 1 then return 0 end
  rcall('ZREM', base .. 'ym:cancelled', id)
  rcall('ZREM', base .. 'ym:expired', id)
  return 1
end
for i, id in ipairs(ARGV) do outcome[i] = remove(id) end
return outcome
