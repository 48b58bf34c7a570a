-- Redisson takes the write hold; entering again adds the lease to what is left (R1 in `docs/protocol.md`).
-- KEYS[1] lock hash   ARGV[1] number   ARGV[2] owner   ARGV[3] lease in ms
local hash, field, number = KEYS[1], ARGV[2] .. ':write', tonumber(ARGV[1])
local mode = redis.call('hget', hash, 'mode')
if not mode then
  redis.call('hset', hash, 'mode', 'write', field, '1')
  redis.call('pexpire', hash, ARGV[3])
  return {number, 1, 0}
end
local left = redis.call('pttl', hash)
if mode == 'write' and redis.call('hexists', hash, field) == 1 then
  local count = redis.call('hincrby', hash, field, 1)
  redis.call('pexpire', hash, left + ARGV[3])
  return {number, count, 0}
end
return {number, 0, left}
