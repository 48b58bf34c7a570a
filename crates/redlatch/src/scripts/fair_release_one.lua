-- Give back one of several holds of one owner of a fair lock, or the last one.
--
-- KEYS[1] lock hash   KEYS[2] queue   KEYS[3] times
-- ARGV[1] request number   ARGV[2] owner field   ARGV[3] channel, to which `:owner` is appended   ARGV[4] publish command
-- ARGV[5] the count before this release, or 0 when unknown   ARGV[6] lease in ms for the holds that stay
--
-- Check:  the owner field exists, in a hash that is no read-write lock's. A count below the known one means that this request ran before (a repeat). At zero, queue and
--         times can be read, which comes first because it may fail.
-- Change: as in release_one.lua; at zero, heads of the queue whose time is over are dropped and the next is told.
--         An owner that holds nothing leaves the queue: who gives back does not wait any more. If it was the next, the one
--         behind it is told, as in fair_undo.lua.
-- Reply:  {number, holds left, receivers}; {number, -1, receivers} when the owner holds nothing.
-- Repeat: counts again, so it is sent once.
-- Recovering: whole; it grants nothing anew.
local key, queue, times, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[2]
local n = tonumber(ARGV[1])
local held = redis.call('hmget', key, owner, 'mode')
local count = not held[2] and tonumber(held[1] or '-1') or -1
local left = 0
if count == -1 then
  local next = redis.call('lindex', queue, 0) == owner
  local placed = redis.call('zrem', times, owner) == 1
  redis.call('hdel', key, held[2] and '' or owner)
  if next then
    redis.call('lpop', queue)
  elseif placed then
    redis.call('lrem', queue, 1, owner)
  end
  if not next then return {n, -1, 0} end
  left = -1
end
if count < tonumber(ARGV[5]) and left == 0 then return {n, count, 0} end
if count > 1 then
  redis.call('hincrby', key, owner, -1)
  if tonumber(ARGV[6]) > redis.call('pttl', key) then redis.call('pexpire', key, ARGV[6]) end
  return {n, count - 1, 0}
end
local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local head, over = false, false
for dropped = 0, 1000 do
  head = redis.call('lindex', queue, 0)
  local time = head and redis.call('zscore', times, head)
  over = time and tonumber(time) <= now
  if not over or dropped == 1000 then break end
  redis.call('zrem', times, head)
  redis.call('lpop', queue)
end
-- A head that is still over stays, and is neither told nor granted to: 1,000 are enough for one call. A waiter that lined up lately is
-- told instead, for each that asks drops as many.
if over then
  head = false
  for _, last in ipairs(redis.call('lrange', queue, -10, -1)) do
    local time = redis.call('zscore', times, last)
    if time and tonumber(time) > now then head = last end
  end
end
redis.call('hdel', key, held[2] and '' or owner)
if not head then return {n, left, 0} end
local heard = redis.pcall(ARGV[4], ARGV[3] .. ':' .. head, '0')
if type(heard) == 'table' then heard = -1 end
return {n, left, heard}
