-- Take the write hold for one owner, or say how long others keep it out.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys   KEYS[3] token counter
-- ARGV[1] request number, echoed   ARGV[2] owner   ARGV[3] lease in ms   ARGV[4] 1 = also draw a token
-- ARGV[5] 1 = only the owner's first write hold, as in acquire.lua
--
-- Check:  the hash is absent, or has a write hold of this very owner (a repeat of the same request), unless only a first one is
--         wanted. A hash without `mode` belongs to a lock of another kind (trap G1). A live read hold of the same owner can never make way for its write
--         hold, so it is refused instead of waited for (R9).
-- Change: mode and the owner's write field are written once with count 1, and the lease is set; a repeat raises the TTL if the
--         lease is longer, and never adds to it (R1). It is written even if it stays, so that replicas can be waited for. The token is drawn before the first write.
-- Reply:  {number, count, token or 0} when granted; {number, 0, ttl ms} when busy (-1: no TTL); {number, -1, 0} another kind of
--         lock; {number, -2, 0} the owner holds it for reading; {number, 0, -5} it writes, and a first hold is wanted.
-- Repeat: harmless.
-- Recovering: in parts; what is refused comes before anything has changed.
local key, owner, lease = KEYS[1], ARGV[2], ARGV[3]
local field = owner .. ':write'
local held = redis.call('hmget', key, 'mode', owner, field)
local ttl = redis.call('pttl', key)
if ttl ~= -2 then
  if not held[1] then return {tonumber(ARGV[1]), -1, 0} end
  if held[1] ~= 'write' or not held[3] then
    redis.call('hdel', key, field)
    if held[1] == 'read' then
      for i = 1, math.min(tonumber(held[2] or '0'), 1000) do
        if redis.call('pttl', KEYS[2] .. owner .. ':rwlock_timeout:' .. i) > 0 then
          return {tonumber(ARGV[1]), -2, 0}
        end
      end
    end
    return {tonumber(ARGV[1]), 0, ttl}
  end
  if ARGV[5] == '1' then
    redis.call('hdel', key, '')
    return {tonumber(ARGV[1]), 0, -5}
  end
  lease = math.max(ttl, lease)
end
local token = 0
if ARGV[4] == '1' then
  local now = redis.call('time')
  token = now[1] * 1000000 + now[2]
  local last = tonumber(redis.call('get', KEYS[3]) or '0')
  if last >= token then token = last + 1 end
  redis.call('set', KEYS[3], string.format('%.0f', token))
end
if ttl == -2 then redis.call('hset', key, 'mode', 'write', field, '1') end
local set = redis.pcall('pexpire', key, lease)
if type(set) == 'table' then
  if ttl == -2 then redis.pcall('del', key) end
  return set
end
return {tonumber(ARGV[1]), tonumber(held[3] or '1'), token}
