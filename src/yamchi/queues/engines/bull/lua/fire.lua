-- parts: add_job
-- KEYS[2] the schedules. ARGV: schedule, moment, then one job as in `add`.
local last = rcall('HGET', KEYS[2], ARGV[1])
if last and tonumber(last) >= tonumber(ARGV[2]) then return 0 end
rcall('HSET', KEYS[2], ARGV[1], ARGV[2])
return add_job(ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8])
