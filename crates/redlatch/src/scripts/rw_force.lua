-- End all read holds, or the write hold with its nested read holds, of any owner; or only while a named owner has one.
--
-- KEYS[1] lock hash   KEYS[2] beginning of the timeout keys
-- ARGV[1] request number   ARGV[2] field that must be there, or '' for any   ARGV[3] 'read' or 'write'
-- ARGV[4] channel   ARGV[5] publish command   ARGV[6] payload: 0 wakes one waiter of a Java client, 1 wakes all
-- KEYS[3] record of forced releases, if there is to be one   ARGV[7] who does it and why
--
-- Check:  the hash is in the mode that is to be ended, and has the named field when one is named. The other side is left alone.
-- Change: the record as in force.lua; the timeout keys of all holders that can be named (R7), then the hash; then the message.
-- Reply:  {number, 1, receivers}; {number, 0, 0} that side is free; {number, -1, 0} another owner has it; {number, -2, 0} the name is
--         in use by a lock of another kind.
-- Repeat: answers otherwise; who forces wants the lock gone.
-- Recovering: in parts; the record is refused, and the rest goes on.
local key, record, n = KEYS[1], KEYS[3], tonumber(ARGV[1])
local held = redis.call('hmget', key, 'mode', ARGV[2])
if not held[1] and redis.call('exists', key) == 1 then return {n, -2, 0} end
if held[1] ~= ARGV[3] then return {n, 0, 0} end
if ARGV[2] ~= '' and not held[2] then return {n, -1, 0} end
local fields = redis.call('hgetall', key)
if record and ARGV[7] then
  local clock, note = redis.pcall('time'), ARGV[7]
  if clock[1] then
    note = '\n' .. string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000)) .. '\n' .. note
  end
  local kept = false
  for at = 1, math.min(#fields, 2000), 2 do
    if fields[at] ~= 'mode' then
      kept = type(redis.pcall('hset', record, fields[at], note)) ~= 'table' or kept
    end
  end
  local time = math.max(60000, math.min(600000, redis.call('pttl', key)))
  if kept and type(redis.pcall('pexpire', record, time)) == 'table' then redis.pcall('del', record) end
end
for at = 1, #fields, 2 do
  for i = 1, math.min(tonumber(fields[at + 1]) or 0, 1000) do
    redis.call('del', KEYS[2] .. fields[at] .. ':rwlock_timeout:' .. i)
  end
end
redis.call('del', key)
local heard = redis.pcall(ARGV[5], ARGV[4], ARGV[6])
if type(heard) == 'table' then heard = -1 end
return {n, 1, heard}
