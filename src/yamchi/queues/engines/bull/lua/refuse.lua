-- parts: letters
-- Ends what can't be run or settled as a job, by hand: its raw value among the dead letters, and then out of every list.
local LONGEST_RAW = 65536
local function raw_of(id)
  local kind = rcall('TYPE', base .. id)['ok']
  if kind == 'string' then return rcall('GETRANGE', base .. id, 0, LONGEST_RAW) end
  if kind == 'hash' then return rcall('HGET', base .. id, 'data') or '' end
  return 'a ' .. kind .. ', and no job'
end
-- Text as JSON can carry it: bytes that are not ASCII are shown by their numbers.
local ODD = '[%z\1-\8\11-\31\127-\255]'
local function shown(text)
  return (string.gsub(text, ODD, function(byte) return string.format('\\x%02x', string.byte(byte)) end))
end
local function refuse(id, reason, now, failed_at)
  local body = cjson.encode({raw_value = shown(string.sub(raw_of(id), 1, LONGEST_RAW)), error_message = shown(reason), failed_at = failed_at})
  local letter = #id <= 255 and string.find(id, '^[%w._/@-]+$') and id or 'raw-' .. redis.sha1hex(id)
  local head = cmsgpack.pack({dlq, letter, '', tonumber(now)})
  write_letter(letter, head, body, cmsgpack.pack({attempts = 1, jobId = letter}), shown(reason))
  rcall('LREM', base .. 'active', 0, id)
  rcall('DEL', base .. id .. ':lock')
  rcall('SREM', base .. 'stalled', id)
  if rcall('TYPE', base .. id)['ok'] == 'hash' then
    rcall('HSET', base .. id, 'failedReason', reason, 'finishedOn', now, 'ymLetter', '1')
    rcall('ZADD', base .. 'failed', now, id)
  end
end
