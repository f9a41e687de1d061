-- parts: letters
-- ARGV: ids of failed jobs that somebody else (Bull Board, Node) put back in the queue: their dead letters are void.
for _, id in ipairs(ARGV) do
  drop_letter_if_any(id)
  rcall('HDEL', base .. id, 'ymLetter')
end
return #ARGV
