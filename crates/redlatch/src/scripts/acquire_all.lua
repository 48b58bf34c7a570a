-- Take several free locks for one owner, all of them or none.
--
-- KEYS[1..n]     lock hashes                   ARGV[1] request number   ARGV[2] owner field   ARGV[3] lease in ms
-- KEYS[n+1..2n]  their token counters, only    ARGV[4] 1 = also draw tokens
--                when tokens are drawn
--
-- Check:  every hash is absent, or already holds this very owner (a repeat of the same request).
-- Change: each owner field is written once with count 1 and the TTL raised to the lease, as in acquire. A write that is refused takes
--         back those before it, so that no part of the set stays behind. Tokens are drawn before the first lock is
--         written.
-- Reply:  {number, 1, token for each, if drawn} when granted; {number, 0, which, ttl ms} when the which-th is busy (-1: no TTL);
--         {number, -1, which, 0} when its hash belongs to a read-write lock.
-- Repeat: harmless.
-- Recovering: in parts; what is refused comes before anything has changed.
local owner, lease, fenced = ARGV[2], ARGV[3], ARGV[4] == '1'
local n = fenced and #KEYS / 2 or #KEYS
local ours = {}
if redis.call('exists', unpack(KEYS, 1, n)) > 0 then
  for i = 1, n do
    local ttl = redis.call('pttl', KEYS[i])
    if ttl ~= -2 then
      local held = redis.call('hmget', KEYS[i], owner, 'mode')
      if held[2] then return {tonumber(ARGV[1]), -1, i, 0} end
      if not held[1] then
        -- A write that changes nothing, which a server that has become a replica refuses.
        redis.call('hdel', KEYS[i], owner)
        return {tonumber(ARGV[1]), 0, i, ttl}
      end
      ours[i] = true
    end
  end
end
local reply = {tonumber(ARGV[1]), 1}
if fenced then
  local now = redis.call('time')
  for i = 1, n do
    local token = now[1] * 1000000 + now[2]
    local last = tonumber(redis.call('get', KEYS[n + i]) or '0')
    if last >= token then token = last + 1 end
    redis.call('set', KEYS[n + i], string.format('%.0f', token))
    reply[2 + i] = token
  end
end
for i = 1, n do
  local set = ours[i] or redis.pcall('hset', KEYS[i], owner, '1')
  if type(set) ~= 'table' then set = redis.pcall('pexpire', KEYS[i], ours[i] and math.max(redis.call('pttl', KEYS[i]), lease) or lease) end
  if type(set) == 'table' then
    for j = 1, i do
      if not ours[j] then redis.pcall('hdel', KEYS[j], owner) end
    end
    return set
  end
end
return reply
