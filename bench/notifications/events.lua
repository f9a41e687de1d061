-- A new event, or a batch of BATCH new events, in each request; the threads' ids never meet.
local thread_number = 0
function setup(thread)
  thread:set("number", thread_number)
  thread_number = thread_number + 1
end

local batch = tonumber(os.getenv("BENCH_BATCH")) or 1
local sent = 0

local function event()
  sent = sent + 1
  return string.format('{"event_type":"user_registered","event_id":"%s-%d-%d","user_id":"%s","data":{"first_name":"Nurzhan","plan":"pro"}}',
    os.getenv("BENCH_RUN"), number, sent, os.getenv("BENCH_USER"))
end

function request()
  if batch == 1 then return wrk.format("POST", nil, { ["Content-Type"] = "application/json" }, event()) end
  local events = {}
  for n = 1, batch do events[n] = event() end
  return wrk.format("POST", nil, { ["Content-Type"] = "application/json" }, "[" .. table.concat(events, ",") .. "]")
end

function done(summary)
  local failed = summary.errors.status + summary.errors.connect + summary.errors.timeout
  io.write(string.format("RESULT %d %d %d\n", summary.requests, summary.duration, failed))
end
