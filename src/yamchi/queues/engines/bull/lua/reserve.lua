-- ARGV: spacing of turns, slack of a burst, then keys. The answer: the moment of each key's turn.
local now, spacing, slack = tonumber(moment()), tonumber(ARGV[1]), tonumber(ARGV[2])
local turns = {}
for i = 3, #ARGV do
  local key = base .. 'ym:turn:' .. ARGV[i]
  local turn = math.max(tonumber(rcall('GET', key) or 0), now - slack)
  local free_in = math.ceil(turn + spacing + slack - now) + 1000
  rcall('SET', key, string.format('%.3f', turn + spacing), 'PX', free_in)
  turns[#turns + 1] = math.max(math.floor(turn + 0.5), now)
end
return turns
