-- Take a read hold for one owner, or say how long a writer keeps it out.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys ('{name}:')   KEYS[3] token counter
-- ARGV[1] request number, echoed   ARGV[2] owner   ARGV[3] lease in ms   ARGV[4] 1 = also draw a token
-- ARGV[5] 1 = only the owner's first read hold, as in acquire.lua
--
-- Check:  the hash is absent, or in mode read, or in mode write with a write hold of this very owner. A hash without `mode`
--         belongs to a lock of another kind and is never entered (trap G1). If only a first hold is wanted, the owner has no
--         live one.
-- Change: the token and the timeout keys come first, because they are what may be refused: then no lock has changed. A repeat counts
--         nothing and refreshes all holds of the owner alike (R4). An owner whose timeout keys have all ended holds
--         nothing any more and starts anew (R5). The TTL of the hash only grows.
-- Reply:  {number, count, token or 0} when granted; {number, 0, ttl ms} when busy (-1: no TTL); {number, 0, -5} when the owner reads
--         and a first hold is wanted; {number, -1, 0} another kind of lock.
-- Repeat: harmless.
-- Recovering: in parts; what is refused comes before anything has changed.
local key, owner, lease = KEYS[1], ARGV[2], ARGV[3]
local own = KEYS[2] .. owner .. ':rwlock_timeout:'
local mode = redis.call('hget', key, 'mode')
local held = mode and redis.call('hget', key, owner)
local ttl = redis.call('pttl', key)
if not mode and ttl ~= -2 then return {tonumber(ARGV[1]), -1, 0} end
if mode and mode ~= 'read' and not (mode == 'write' and redis.call('hexists', key, owner .. ':write') == 1) then
  -- A write that changes nothing: a server that has become a read-only replica refuses here.
  redis.call('hdel', key, owner)
  return {tonumber(ARGV[1]), 0, ttl}
end
local count, longest = tonumber(held or '0'), 0
for i = 1, math.min(count, 1000) do longest = math.max(longest, redis.call('pttl', own .. i)) end
local fresh = longest == 0
if ARGV[5] == '1' and not fresh then
  redis.call('hdel', key, '')
  return {tonumber(ARGV[1]), 0, -5}
end
local token = 0
if ARGV[4] == '1' then
  local now = redis.call('time')
  token = now[1] * 1000000 + now[2]
  local last = tonumber(redis.call('get', KEYS[3]) or '0')
  if last >= token then token = last + 1 end
  redis.call('set', KEYS[3], string.format('%.0f', token))
end
if fresh then count = 1 end
if longest < tonumber(lease) then longest = lease end
-- Making a number the end of a key costs nearly as much as a command does, so the first key, mostly the only one, needs none.
redis.call('set', own .. '1', '1', 'px', longest)
for i = 2, math.min(count, 1000) do redis.call('set', own .. i, '1', 'px', longest) end
if not mode then
  redis.call('hset', key, 'mode', 'read', owner, '1')
elseif fresh then
  redis.call('hset', key, owner, '1')
end
if ttl < tonumber(longest) then
  local set = redis.pcall('pexpire', key, longest)
  if type(set) == 'table' then
    if fresh then
      redis.pcall('del', own .. '1')
      redis.pcall('hdel', key, owner)
    end
    if ttl == -2 then redis.pcall('del', key) end
    return set
  end
end
return {tonumber(ARGV[1]), count, token}
