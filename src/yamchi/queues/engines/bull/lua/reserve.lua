-- ARGV: spacing of permits, slack of a burst, then keys. The answer: the moment of each key's permit.
local now, spacing, slack = tonumber(moment()), tonumber(ARGV[1]), tonumber(ARGV[2])
local permits = {}
for i = 3, #ARGV do
  local key = base .. 'ym:turn:' .. ARGV[i]
  local from = math.max(tonumber(rcall('GET', key) or 0), now - slack)
  local free_in = math.ceil(from + spacing + slack - now) + 1000
  rcall('SET', key, string.format('%.3f', from + spacing), 'PX', free_in)
  permits[#permits + 1] = math.max(math.floor(from + 0.5), now)
end
return permits
