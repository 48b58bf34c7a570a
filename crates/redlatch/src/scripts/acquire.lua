-- Take a free lock for one owner, or say how long it is taken for.
--
-- KEYS[1] lock hash          ARGV[1] request number, echoed so that a reply is never taken for another's
-- KEYS[2] token counter      ARGV[2] owner field      ARGV[3] lease in ms      ARGV[4] 1 = also draw a token
-- ARGV[5] 1 = only the owner's first hold, because other processes may use the owner too; otherwise absent
--
-- Check:  the hash is absent, or already holds this very owner (a repeat of the same request). If only a first hold is wanted, the
--         owner's own field is in the way like anybody's.
-- Change: the owner field is written once with count 1 and the lease set. A repeat only raises the TTL to the lease, so sending the request
--         twice never counts twice; one that comes late may find the TTL renewed for longer, and does not shorten it. The lease is set through
--         pcall and undone on failure, so a refused PEXPIRE cannot leave a lock without end. The token is drawn before the first write: what may
--         be refused there must leave no lock, and a token that nobody got does no harm.
-- Reply:  {number, count, token or 0} when granted; {number, 0, ttl ms} when busy (-1: the hash has no TTL);
--         {number, 0, -5} when the owner holds it and a first hold is wanted; {number, -1, 0} when the hash belongs to a
--         read-write lock, also if the owner reads there.
-- Repeat: harmless.
-- Recovering: in parts; what is refused comes before anything has changed.
local key, owner, lease = KEYS[1], ARGV[2], ARGV[3]
local ttl = redis.call('pttl', key)
local count = 1
if ttl ~= -2 then
  local held = redis.call('hmget', key, owner, 'mode')
  if held[2] then return {tonumber(ARGV[1]), -1, 0} end
  if not held[1] then
    -- A write that changes nothing: a server that has become a read-only replica refuses here instead of
    -- letting the caller wait for a release that it will never see.
    redis.call('hdel', key, owner)
    return {tonumber(ARGV[1]), 0, ttl}
  end
  if ARGV[5] == '1' then
    redis.call('hdel', key, '')
    return {tonumber(ARGV[1]), 0, -5}
  end
  count = tonumber(held[1])
  lease = math.max(ttl, lease)
end
local token = 0
if ARGV[4] == '1' then
  -- The server's clock in microseconds is the floor of every token, so that a counter that was lost
  -- (FLUSHALL, empty restart) does not start below tokens that were handed out before.
  local now = redis.call('time')
  token = now[1] * 1000000 + now[2]
  local last = tonumber(redis.call('get', KEYS[2]) or '0')
  if last >= token then token = last + 1 end
  redis.call('set', KEYS[2], string.format('%.0f', token))
end
if ttl == -2 then redis.call('hset', key, owner, '1') end
local set = redis.pcall('pexpire', key, lease)
if type(set) == 'table' then
  if ttl == -2 then redis.pcall('hdel', key, owner) end
  return set
end
return {tonumber(ARGV[1]), count, token}
