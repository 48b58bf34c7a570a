-- Delete a fair lock of any owner, or only while a named owner holds it; those who wait keep their places.
--
-- KEYS[1] lock hash   KEYS[2] queue   KEYS[3] times   ARGV[1] request number   ARGV[2] owner field that must be there, or ''
-- ARGV[3] channel, to which `:owner` is appended   ARGV[4] publish command
-- KEYS[4] record of forced releases, if there is to be one   ARGV[5] who does it and why
--
-- Check:  the key is a hash without a `mode` field, and has the named owner when one is named; queue and times can be read.
-- Change: the record as in force.lua; heads of the queue whose time is over are dropped; DEL; the next is told even when nothing was held.
-- Reply:  {number, 1 or 0, receivers}; {number, -1, 0} another owner holds it; {number, -2, 0} a read-write lock.
-- Repeat: answers otherwise; who forces wants the lock gone.
-- Recovering: in parts; the record is refused, and the rest goes on.
local key, queue, times, record = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local n = tonumber(ARGV[1])
local held = redis.call('hmget', key, ARGV[2], 'mode')
if held[2] then return {n, -2, 0} end
if ARGV[2] ~= '' and not held[1] and redis.call('exists', key) == 1 then return {n, -1, 0} end
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
if record and ARGV[5] then
  local note = '\n' .. string.format('%.0f', now) .. '\n' .. ARGV[5]
  local fields, kept = redis.call('hgetall', key), false
  for at = 1, math.min(#fields, 2000), 2 do
    kept = type(redis.pcall('hset', record, fields[at], note)) ~= 'table' or kept
  end
  local time = math.max(60000, math.min(600000, redis.call('pttl', key)))
  if kept and type(redis.pcall('pexpire', record, time)) == 'table' then redis.pcall('del', record) end
end
local gone = redis.call('del', key)
if not head then return {n, gone, 0} end
local heard = redis.pcall(ARGV[4], ARGV[3] .. ':' .. head, '0')
if type(heard) == 'table' then heard = -1 end
return {n, gone, heard}
