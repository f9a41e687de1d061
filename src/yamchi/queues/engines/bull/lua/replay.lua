-- bullmq: removeJob
-- parts: state add_job letters mending
-- ARGV: for each letter its id, then its job as in `add`. The answer: 1 for each that was replayed.
local outcome = {}
local FINISHED = {completed = true, failed = true, ['ym:cancelled'] = true, ['ym:expired'] = true}
local function clear_finished(id)
  local state = state_of(id)
  if rcall('EXISTS', base .. id) == 0 or not FINISHED[state] then return end
  removeJob({base .. id, base .. 'repeat'}, {id, '0', base})
  rcall('ZREM', base .. state, id)
end
for i = 1, #ARGV, 7 do
  local is_there = mend(ARGV[i + 2]) and drop_letter(ARGV[i]) or 0
  if is_there == 1 then
    clear_finished(ARGV[i + 2])
    add_job(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5], ARGV[i + 6])
  end
  outcome[#outcome + 1] = is_there
end
return outcome
