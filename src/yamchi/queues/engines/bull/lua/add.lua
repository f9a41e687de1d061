-- parts: add_job
-- ARGV: for each job its kind, id, packed arguments, data, packed options, expiry or ''.
local created = {}
for i = 1, #ARGV, 6 do
  created[#created + 1] = add_job(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5])
end
return created
