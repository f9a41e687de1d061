-- bullmq: addLog
-- ARGV: job id, then lines.
for i = 2, #ARGV do addLog({base .. ARGV[1], base .. ARGV[1] .. ':logs'}, {ARGV[1], ARGV[i], ''}) end
return #ARGV - 1
