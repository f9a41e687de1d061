-- bullmq: updateProgress
-- ARGV: job id, token, progress. Only the holder of the lock is heard.
if rcall('GET', base .. ARGV[1] .. ':lock') ~= ARGV[2] then return 0 end
updateProgress({base .. ARGV[1], base .. 'events', base .. 'meta'}, {ARGV[1], ARGV[3]})
return 1
