-- parts: letters
-- ARGV: letter ids. The answer: how many went.
local gone = 0
for _, id in ipairs(ARGV) do gone = gone + drop_letter(id) end
return gone
