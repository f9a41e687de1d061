-- bullmq: updateJobScheduler
-- ARGV: moment, scheduler, data, packed options, now, id of the job that was taken.
local keys = named(base, {'repeat', 'delayed', 'wait', 'paused', 'meta', 'prioritized', 'marker', 'id', 'events', 'pc', ARGV[6], 'active'})
return updateJobScheduler(keys, {ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], base, ARGV[6]})
