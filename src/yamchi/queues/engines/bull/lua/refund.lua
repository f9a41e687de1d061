-- ARGV: key, how much time to give back.
local key = base .. 'ym:turn:' .. ARGV[1]
local turn = rcall('GET', key)
if turn then rcall('SET', key, string.format('%.3f', turn - ARGV[2]), 'KEEPTTL') end
return 0
