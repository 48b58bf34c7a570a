-- Pass a write hold from one owner to the next without ever leaving the lock free.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys   KEYS[3] token counter
-- ARGV[1] request number   ARGV[2] owner that gives   ARGV[3] owner that takes   ARGV[4] lease in ms
-- ARGV[5] 1 = also draw a token   ARGV[6] 1, 2 = only the giver's one hold, as in transfer.lua
--
-- Check:  the giving owner has its write field, or the taking owner has it already (a repeat). Read holds that the giver keeps
--         shut every other writer out, so nothing is passed on while there are any. If only one hold is to move, the giver counts one.
-- Change: the token is drawn first, because it may be refused and nothing may have moved then; the next owner's field is written
--         before the other is removed; the lease is set.
-- Reply:  {number, 1, token or 0}; {number, 2, 0} it may not be passed on and is the giver's as before; {number, 0, ttl ms} when the
--         giver no longer held it.
-- Repeat: harmless.
-- Recovering: waits; what it moves may have been given back, and that be missing.
local key, giver = KEYS[1], ARGV[2]
local from, to = giver .. ':write', ARGV[3] .. ':write'
local held = redis.call('hmget', key, from, to, giver)
local one, back = ARGV[6] == '1' or ARGV[6] == '2', ARGV[6] == '2'
if not held[1] and (back or not held[2]) then
  redis.call('hdel', key, from)
  return {tonumber(ARGV[1]), 0, redis.call('pttl', key)}
end
if held[1] then
  if one and held[1] ~= '1' then
    redis.call('hdel', key, '')
    return {tonumber(ARGV[1]), 2, 0}
  end
  for i = 1, math.min(tonumber(held[3] or '0'), 1000) do
    if redis.call('pttl', KEYS[2] .. giver .. ':rwlock_timeout:' .. i) > 0 then return {tonumber(ARGV[1]), 2, 0} end
  end
end
local token = 0
if ARGV[5] == '1' then
  local now = redis.call('time')
  token = now[1] * 1000000 + now[2]
  local last = tonumber(redis.call('get', KEYS[3]) or '0')
  if last >= token then token = last + 1 end
  redis.call('set', KEYS[3], string.format('%.0f', token))
end
if held[1] and from ~= to then
  redis.call('hset', key, to, '1')
  redis.call('hdel', key, from, giver)
end
if not back and ((held[1] and from ~= to) or redis.call('pttl', key) < tonumber(ARGV[4])) then
  redis.call('pexpire', key, ARGV[4])
end
return {tonumber(ARGV[1]), 1, token}
