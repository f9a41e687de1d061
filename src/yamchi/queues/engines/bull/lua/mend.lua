-- parts: mending
-- ARGV: ids of claimed jobs whose hashes others wrote with nonsense in them.
for _, id in ipairs(ARGV) do mend(id) end
return #ARGV
