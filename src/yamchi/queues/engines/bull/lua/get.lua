-- parts: state
-- ARGV: job id. The answer: hash, state, score in that state's set, log lines.
if rcall('TYPE', base .. ARGV[1])['ok'] ~= 'hash' then return false end
local job = rcall('HGETALL', base .. ARGV[1])
local state, score = state_of(ARGV[1])
return {job, state, score, rcall('LRANGE', base .. ARGV[1] .. ':logs', 0, -1)}
