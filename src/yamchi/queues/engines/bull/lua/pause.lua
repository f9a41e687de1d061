-- bullmq: pause
-- ARGV: "paused" or "resumed". The answer: how many jobs of an older BullMQ's pause are still to come back.
local source, target = 'paused', 'wait'
if ARGV[1] == 'paused' then source, target = 'wait', 'paused' end
return pause(named(base, {source, target, 'meta', 'prioritized', 'events', 'delayed', 'marker'}), {ARGV[1], '1'})
