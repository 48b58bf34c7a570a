-- Release several locks whose owner fields belong to one process alone.
--
-- KEYS lock hashes   ARGV[1] request number   ARGV[2] publish command
-- then for each: owner field, channel ('' tells nobody), only if the owner counts so many ('' for any), as in release.lua
--
-- Check and change: each as in release. One that is gone, or whose message is refused, does not stop the others.
-- Reply:  {number, 1 or 0, receivers, …}, two items for each lock: whether the owner held it (-1: the key cannot be
--         released, or the owner counts another number), and who heard of it (-1: the message was refused).
-- Repeat: answers otherwise; the caller knows what its own request may have done.
local reply = {tonumber(ARGV[1])}
for i, key in ipairs(KEYS) do
  local owner, channel, only = ARGV[3 * i], ARGV[3 * i + 1], ARGV[3 * i + 2]
  local held = only ~= '' and redis.pcall('hmget', key, owner, 'mode') or {}
  local gone, heard = -1, 0
  if not held[2] and (not held[1] or held[1] == only) then gone = redis.pcall('hdel', key, owner) end
  if type(gone) == 'table' then gone = -1 end
  if gone == 1 and channel ~= '' then
    heard = redis.pcall(ARGV[2], channel, '0')
    if type(heard) == 'table' then heard = -1 end
  end
  reply[2 * i] = gone
  reply[2 * i + 1] = heard
end
return reply
