-- Take a fair lock if it is free and nobody comes first; line up behind the others if asked to.
--
-- KEYS[1] lock hash   KEYS[2] queue   KEYS[3] times   KEYS[4] token counter, if a token is drawn
-- ARGV[1] request number   ARGV[2] owner field   ARGV[3] lease in ms   ARGV[4] 1 = also draw a token
-- ARGV[5] ms for which a waiter counts without being heard of, 0 = do not line up
-- ARGV[6] channel, to which `:owner` is appended   ARGV[7] publish command
-- ARGV[8] ms that a waiter of Redisson subtracts from those behind it   ARGV[9] 0 = no such waiter is before this owner
-- ARGV[10] 1 = only the owner's first hold, as in acquire.lua
--
-- Check:  first, heads of the queue whose time is over by the server's clock are dropped, at most 1,000, but not this owner, who is
--         heard of just now; a head without a time, which nothing would ever drop, gets a short one, and a head of ours
--         that was left with a long one gets the time of a head. Then: the hash is absent and the queue empty or headed by
--         this owner; or the hash holds this very owner (a repeat), unless only a first hold is wanted.
-- Change: the owner leaves the queue, its field is written with count 1, the TTL is raised to the lease. Otherwise it lines up once, and
--         each repeat sets its own time anew: the lease, its wait, and what those before it will subtract from it when
--         they get the lock or give up, which only Redisson's do. A field of ours is known by a fixed part of its UUID.
--         Ours add nothing for those behind them, so nothing has to be subtracted, and a grant costs the same behind
--         10 waiters as behind 10,000. If there was more to drop, the lock counts as busy, and a waiter is told to go on with it.
-- Reply:  {number, count, token or 0}; {number, 0, ttl ms} when busy and this owner is next or did not line up;
--         {number, 0, -3} when others come first, {number, 0, -4} when some of them are Redisson's or too many to tell;
--         {number, 0, -5} when the owner holds it and a first hold is wanted; {number, -1, 0} when the hash belongs to a
--         read-write lock.
-- Repeat: harmless.
-- Recovering: waits; it takes away before it may grant.
local key, queue, times = KEYS[1], KEYS[2], KEYS[3]
local n, owner, lease, wait = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[5])
local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function theirs(member) return string.sub(member, 15, 23) ~= '4ed1-a7c4' end
local head, dropped, time, over = false, 0, false, false
while true do
  head, over = redis.call('lindex', queue, 0), false
  if not head or head == owner then break end
  time = redis.call('zscore', times, head)
  if not time then
    redis.call('zadd', times, string.format('%.0f', now + 5000), head)
    break
  end
  over = tonumber(time) <= now
  if not over or dropped == 1000 then break end
  redis.call('zrem', times, head)
  redis.call('lpop', queue)
  dropped = dropped + 1
end
local ttl = redis.call('pttl', key)
local count = 1
local held = ttl ~= -2 and redis.call('hmget', key, owner, 'mode')
if held and held[2] then return {n, -1, 0} end
if (held and not held[1]) or (not held and head and head ~= owner) then
  -- A write that changes nothing: a server that has become a read-only replica refuses here.
  redis.call('hdel', key, owner)
  local before, recount = 0, false
  if wait > 0 then
    local alone = now + math.max(ttl, 0) + wait
    if head and head ~= owner then
      local placed = redis.call('zscore', times, owner)
      -- Nobody who comes later comes first, so who found none of them before it needs not count again.
      -- Only the first 300 are counted: nobody further back gets its turn before it looks again.
      if not placed or ARGV[9] ~= '0' then
        local members, found = redis.call('lrange', queue, 0, 299), false
        for _, member in ipairs(members) do
          if member == owner then
            found = true
            break
          end
          if theirs(member) then before = before + 1 end
        end
        placed = placed or found
        recount = before > 0 or (#members == 300 and not found)
      end
      if not placed then redis.call('rpush', queue, owner) end
      if time and tonumber(time) > alone and not theirs(head) then
        redis.call('zadd', times, string.format('%.0f', alone), head)
      end
    elseif not head then
      redis.call('rpush', queue, owner)
      head = owner
    end
    redis.call('zadd', times, string.format('%.0f', alone + before * ARGV[8]), owner)
  end
  local tell = dropped > 0 and head ~= owner and head
  if over then
    -- 1,000 are enough for one call. Each that asks drops as many, so this owner is to ask again; or one that lined up lately.
    tell = wait > 0 and owner
    for _, last in ipairs(tell and {} or redis.call('lrange', queue, -10, -1)) do
      local ends = redis.call('zscore', times, last)
      if ends and tonumber(ends) > now then tell = last end
    end
  end
  -- Those who were dropped may have been the last ones that were told; and no message comes when a lease runs out.
  if tell then redis.pcall(ARGV[7], ARGV[6] .. ':' .. tell, '0') end
  if head and head ~= owner and (wait > 0 or not held) then return {n, 0, recount and -4 or -3} end
  return {n, 0, ttl}
end
if held and ARGV[10] == '1' then
  redis.call('hdel', key, '')
  return {n, 0, -5}
end
if held then
  count = tonumber(held[1])
  lease = math.max(ttl, lease)
end
local token = 0
if ARGV[4] == '1' then
  -- As in acquire.lua.
  token = clock[1] * 1000000 + clock[2]
  local last = tonumber(redis.call('get', KEYS[4]) or '0')
  if last >= token then token = last + 1 end
  redis.call('set', KEYS[4], string.format('%.0f', token))
end
if not held then redis.call('hset', key, owner, '1') end
local set = redis.pcall('pexpire', key, lease)
if type(set) == 'table' then
  if not held then redis.pcall('hdel', key, owner) end
  return set
end
if head == owner then
  redis.call('lpop', queue)
  redis.call('zrem', times, owner)
end
return {n, count, token}
