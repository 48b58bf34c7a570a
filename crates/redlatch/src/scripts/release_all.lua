-- Release several locks whose owner fields belong to one hold each.
--
-- KEYS lock hashes   ARGV[1] number, echoed   ARGV[2] publish command   then for each: owner field, channel ('' tells nobody)
--
-- Check and change: each as in release. One that is gone, or whose message is refused, does not stop the others.
-- Reply:  {number, 1 or 0, receivers, …}, two items for each lock: whether the owner held it (-1: the key cannot be
--         released), and who heard of it (-1: the message was refused).
local reply = {tonumber(ARGV[1])}
for i, key in ipairs(KEYS) do
  local gone, heard = redis.pcall('hdel', key, ARGV[2 * i + 1]), 0
  if type(gone) == 'table' then gone = -1 end
  if gone == 1 and ARGV[2 * i + 2] ~= '' then
    heard = redis.pcall(ARGV[2], ARGV[2 * i + 2], '0')
    if type(heard) == 'table' then heard = -1 end
  end
  reply[2 * i] = gone
  reply[2 * i + 1] = heard
end
return reply
