-- Redisson gives a read hold back: its newest timeout key goes, and the TTL becomes what the longest of all timeout keys needs,
-- also while somebody writes (R2 in `docs/protocol.md`).
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys   ARGV[1] number   ARGV[2] owner   ARGV[3] channel
local hash, owner, number = KEYS[1], ARGV[2], tonumber(ARGV[1])
if redis.call('hexists', hash, owner) == 0 then return {number, -1} end
local count = redis.call('hincrby', hash, owner, -1)
if count == 0 then redis.call('hdel', hash, owner) end
redis.call('del', KEYS[2] .. owner .. ':rwlock_timeout:' .. (count + 1))
local fields = redis.call('hgetall', hash)
if #fields > 2 then
  local longest = 0
  for at = 1, #fields, 2 do
    for i = 1, tonumber(fields[at + 1]) or 0 do
      longest = math.max(longest, redis.call('pttl', KEYS[2] .. fields[at] .. ':rwlock_timeout:' .. i))
    end
  end
  if longest > 0 then
    redis.call('pexpire', hash, longest)
    return {number, count}
  end
  if redis.call('hget', hash, 'mode') == 'write' then return {number, count} end
end
redis.call('del', hash)
redis.call('publish', ARGV[3], '0')
return {number, count}
