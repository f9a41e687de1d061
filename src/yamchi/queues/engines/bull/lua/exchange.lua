-- bullmq: moveToFinished moveToDelayed retryJob moveJobFromActiveToWait moveToActive
-- parts: state finish_beside letters mending refuse
-- Settles a batch of verdicts and claims up to `want` jobs. ARGV: want, packed claim options, now as text, then the verdicts,
-- each beginning with its kind. The answer: a code for each verdict (BullMQ's, ours, or text), the claims, in how many
-- milliseconds the next job is due (0 if none is known), what was found that is
-- no job (each an id and why), and what keeps the queue from being read.
local now = moment()
local KEPT_MINUTES = 10080
local ALREADY_OVER = -20
local keys = when_needed({
  active = {'wait', 'active', 'prioritized', 'events', 'stalled', 'limiter', 'delayed', 'paused', 'meta', 'pc', 'marker'},
  completed = {'wait', 'active', 'prioritized', 'events', 'stalled', 'limiter', 'delayed', 'paused', 'meta', 'pc', 'completed', '', 'metrics:completed', 'marker'},
  failed = {'wait', 'active', 'prioritized', 'events', 'stalled', 'limiter', 'delayed', 'paused', 'meta', 'pc', 'failed', '', 'metrics:failed', 'marker'},
  delayed = {'marker', 'active', 'prioritized', 'delayed', '', 'events', 'meta', 'stalled', 'wait', 'limiter', 'pc'},
  retried = {'active', 'wait', 'paused', '', 'meta', 'events', 'delayed', 'prioritized', 'pc', 'marker', 'stalled'},
  released = {'active', 'wait', 'stalled', 'paused', 'meta', 'limiter', 'prioritized', 'marker', 'events'},
})
local done = {c = 0, f = 0}

local function finish(kind, id, property, value, state, opts, fields)
  keys[state][12] = base .. id
  local code = moveToFinished(keys[state], {id, now, property, value, state, '', base, opts, fields})
  if code == 0 then done[kind] = done[kind] + 1 end
  return code
end

local function end_beside(id, token, state)
  local lock = base .. id .. ':lock'
  if rcall('GET', lock) ~= token then return -2 end
  if rcall('LREM', base .. 'active', -1, id) < 1 then return -3 end
  rcall('DEL', lock)
  rcall('SREM', base .. 'stalled', id)
  finish_beside(id, state, now)
  return 0
end

-- A job that somebody asked to stop does not go back to the queue, whatever its verdict.
local function is_unwanted(id, token)
  return rcall('HGET', base .. 'ym:cancelling', id) == token
end

-- BullMQ forgets when a job was due as soon as it is no longer delayed.
local function note_due(id, code, due)
  if code == 0 then rcall('HSET', base .. id, 'ymDue', due) end
  return code
end

local function put_back(id, token, delay, fields, costs)
  if is_unwanted(id, token) then return end_beside(id, token, 'cancelled') end
  if tonumber(delay) > 0 then
    keys.delayed[5] = base .. id
    local code = moveToDelayed(keys.delayed, {base, now, id, token, delay, costs and '0' or '1', fields, '0'})
    return note_due(id, code, string.format('%.0f', now + delay))
  end
  if costs then
    keys.retried[4] = base .. id
    return note_due(id, retryJob(keys.retried, {base, now, 'LPUSH', id, token, fields}), now)
  end
  local code = moveJobFromActiveToWait(keys.released, {id, token, base .. id})
  if code < 0 then return code end
  if fields ~= '' then rcall('HMSET', base .. id, unpack(cmsgpack.unpack(fields))) end
  if rcall('HEXISTS', base .. 'meta', 'paused') == 0 then rcall('ZADD', base .. 'marker', 0, '0') end
  return 0
end

-- Each verdict with how many arguments it takes.
local VERDICTS = {
  c = {3, function(id, opts, value) return finish('c', id, 'returnvalue', value, 'completed', opts) end},
  f = {7, function(id, opts, reason, fields, packed, body, letter_opts)
    local code = finish('f', id, 'failedReason', reason, 'failed', opts, fields)
    if code == 0 then
      write_letter(id, packed, body, letter_opts, reason)
      if rcall('EXISTS', base .. id) == 1 then rcall('HSET', base .. id, 'ymLetter', '1') end
    end
    return code
  end},
  r = {4, function(id, token, delay, fields) return put_back(id, token, delay, fields, true) end},
  p = {4, function(id, token, delay, fields) return put_back(id, token, delay, fields, false) end},
  e = {3, end_beside},
}

local function note_minute(kind)
  if done[kind] == 0 then return end
  local minutes, minute = base .. 'ym:minutes', math.floor(now / 60000)
  local count = rcall('HINCRBY', minutes, string.format('%.0f%s', minute, kind), done[kind])
  if count == done[kind] and rcall('HLEN', minutes) > 2 * KEPT_MINUTES then
    for _, field in ipairs(rcall('HKEYS', minutes)) do
      if tonumber(string.sub(field, 1, -2)) < minute - KEPT_MINUTES then rcall('HDEL', minutes, field) end
    end
  end
end

local codes, claims, refused, due = {}, {}, {}, 0
local MOST_REFUSED = 20
local function why_of(error)
  return type(error) == 'table' and error['err'] or tostring(error)
end
local function put_away(id, reason)
  refuse(id, reason, now, ARGV[3])
  refused[#refused + 1] = {id, reason}
end

local i = 4
while i <= #ARGV do
  local verdict, id = VERDICTS[ARGV[i]], ARGV[i + 1]
  -- One job that can't be settled (a damaged hash) must not hold up the others.
  local is_fine, code = pcall(verdict[2], unpack(ARGV, i + 1, i + verdict[1]))
  if not is_fine then
    code = why_of(code)
    pcall(refuse, id, 'could not be settled: ' .. code, now, ARGV[3])
  end
  if code == -2 and not is_running(id) then code = ALREADY_OVER end
  codes[#codes + 1] = code
  i = i + verdict[1] + 1
end
note_minute('c')
note_minute('f')
-- BullMQ's limit on how many run at once over all workers: whoever waits for a place is woken when one is free.
if #codes > 0 and rcall('HEXISTS', base .. 'meta', 'concurrency') == 1 then rcall('ZADD', base .. 'marker', 0, '0') end

-- Takes the next job. One that BullMQ's script fails on is the newest of the active ones by then: it is mended and
-- taken, or put away, so that it costs those behind it nothing. Nothing is taken where the queue itself is the trouble.
local want, running, trouble = tonumber(ARGV[1]), rcall('LLEN', base .. 'active'), ''
local function take()
  local is_fine, reply = pcall(moveToActive, keys.active, {base, now, ARGV[2]})
  if is_fine then return reply end
  if rcall('LLEN', base .. 'active') <= running then
    trouble = why_of(reply)
    return {0, 0, 1000, 0}
  end
  local id = rcall('LINDEX', base .. 'active', 0)
  if not mend(id) then
    put_away(id, 'is no job: ' .. why_of(reply))
    return nil
  end
  rcall('HINCRBY', base .. id, 'ats', 1)
  return {rcall('HGETALL', base .. id), id, 0, 0}
end
-- What was claimed is answered, whatever goes wrong with the next one.
local function take_all()
  local may_be_more = want > 0
  while #claims < want and #refused < MOST_REFUSED do
    if may_be_more then may_be_more = mend_due(now) end
    local reply = take()
    if reply and type(reply[1]) ~= 'table' then
      due = reply[3]
      if reply[4] > 0 then due = math.min(math.max(math.ceil(reply[4] - now), 1), 86400000) end
      break
    elseif reply and is_fit(reply[2]) then
      claims[#claims + 1] = {reply[2], reply[1]}
      running = running + 1
    elseif reply then
      put_away(reply[2], 'has an id that no job can have')
    end
    if #refused > 0 then running = rcall('LLEN', base .. 'active') end
  end
end
local is_taken, why = pcall(take_all)
if not is_taken then trouble, due = why_of(why), 1000 end
return {codes, claims, due, refused, trouble}
