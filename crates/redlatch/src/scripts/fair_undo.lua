-- Take an owner out of a fair lock altogether: out of the queue, and out of a grant that nobody took.
--
-- KEYS[1] lock hash   KEYS[2] queue   KEYS[3] times
-- ARGV[1] request number   ARGV[2] owner field   ARGV[3] channel, to which `:owner` is appended   ARGV[4] publish command
-- ARGV[5] the hold only if the owner counts so many, as in release.lua
--
-- Check:  queue and times can be read, which comes first because it may fail; removing what is not there changes nothing. With a
--         count: another one means that another process has come to hold under the owner, and the hash of a read-write lock has no hold
--         of this kind.
-- Change: the owner's field, time and place go. If it held the lock or was next, the one that is next now is told: the message
--         before this was for the owner, and if the lock is held, no message comes when the lease runs out.
-- Reply:  {number, 1, receivers} when it held the lock; {number, 0, receivers} when it only waited, or not even that;
--         {number, -1, count} when it counts another number, and keeps that.
-- Repeat: answers otherwise; the caller knows what its own request may have done.
local key, queue, times, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[2]
local n = tonumber(ARGV[1])
local next = redis.call('lindex', queue, 0) == owner
local placed = redis.call('zrem', times, owner) == 1
local there, held = ARGV[5] and redis.call('hmget', key, owner, 'mode') or {}, 0
local count = not there[2] and there[1]
local others = count and count ~= ARGV[5]
if not others and not there[2] then held = redis.call('hdel', key, owner) end
local function reply(heard)
  if others then return {n, -1, tonumber(count)} end
  return {n, held, heard}
end
if next then
  redis.call('lpop', queue)
elseif placed then
  redis.call('lrem', queue, 1, owner)
end
if held == 0 and not next then return reply(0) end
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
if not head then return reply(0) end
local heard = redis.pcall(ARGV[4], ARGV[3] .. ':' .. head, '0')
if type(heard) == 'table' then heard = -1 end
return reply(heard)
