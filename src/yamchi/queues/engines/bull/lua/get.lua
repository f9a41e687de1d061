-- parts: state
-- ARGV: job id. The answer: hash, state, score in that state's set, log lines.
local job = rcall('HGETALL', base .. ARGV[1])
if #job == 0 then return false end
local state, score = state_of(ARGV[1])
return {job, state, score, rcall('LRANGE', base .. ARGV[1] .. ':logs', 0, -1)}
