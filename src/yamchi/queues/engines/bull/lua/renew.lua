-- bullmq: extendLocks
-- ARGV: key prefix, packed tokens, packed job ids, lock duration. The answer: ids that are no longer held.
return extendLocks({base .. 'stalled'}, ARGV)
