-- bullmq: updateData
-- parts: state
-- ARGV: job id, data. Only a job that is not running is changed.
if is_running(ARGV[1]) or rcall('TYPE', base .. ARGV[1])['ok'] ~= 'hash' then return 0 end
return updateData({base .. ARGV[1]}, {ARGV[2]}) == 0 and 1 or 0
