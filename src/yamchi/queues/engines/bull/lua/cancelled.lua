-- parts: state
-- Who has been asked to stop: a flat list of id and token. Requests for runs that are over are forgotten here.
local asked = rcall('HGETALL', base .. 'ym:cancelling')
local standing = {}
for i = 1, #asked, 2 do
  local holder = rcall('GET', base .. asked[i] .. ':lock')
  if holder == asked[i + 1] then
    standing[#standing + 1] = asked[i]
    standing[#standing + 1] = asked[i + 1]
  elseif holder or not is_running(asked[i]) then
    rcall('HDEL', base .. 'ym:cancelling', asked[i])
  end
end
return standing
