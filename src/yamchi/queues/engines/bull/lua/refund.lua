-- ARGV: key, how much time to give back.
local key = base .. 'ym:turn:' .. ARGV[1]
local from = rcall('GET', key)
if from then rcall('SET', key, string.format('%.3f', from - ARGV[2]), 'KEEPTTL') end
return 0
