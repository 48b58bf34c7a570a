-- Delete a lock of any owner, or only while a named owner holds it.
--
-- KEYS[1] lock hash   ARGV[1] request number   ARGV[2] owner field that must be there, or '' for any
-- ARGV[3] channel     ARGV[4] publish command, '' to tell nobody
-- KEYS[2] record of forced releases, if there is to be one   ARGV[5] who does it and why
--
-- Check:  the key is a hash (any other type is an error, never a deletion) without a `mode` field, and has the
--         named owner when one is named.
-- Change: the record names the holders, with the server's time, for as long as they may take to look, 1 to 10 minutes; what is refused
--         there is no reason to leave the lock. DEL. The message is sent even when nothing was there: it costs nothing, and waiters that missed an earlier one look again.
-- Reply:  {number, 1 or 0, receivers}; {number, -1, 0} another owner holds it; {number, -2, 0} a read-write lock.
-- Repeat: answers otherwise; who forces wants the lock gone.
-- Recovering: in parts; the record is refused, and the rest goes on.
local key, record = KEYS[1], KEYS[2]
local n = tonumber(ARGV[1])
local held = redis.call('hmget', key, ARGV[2], 'mode')
if held[2] then return {n, -2, 0} end
if ARGV[2] ~= '' and not held[1] and redis.call('exists', key) == 1 then return {n, -1, 0} end
if record and ARGV[5] then
  local clock, note = redis.pcall('time'), ARGV[5]
  if clock[1] then
    note = '\n' .. string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000)) .. '\n' .. note
  end
  local fields, kept = redis.call('hgetall', key), false
  for at = 1, math.min(#fields, 2000), 2 do
    kept = type(redis.pcall('hset', record, fields[at], note)) ~= 'table' or kept
  end
  local time = math.max(60000, math.min(600000, redis.call('pttl', key)))
  if kept and type(redis.pcall('pexpire', record, time)) == 'table' then redis.pcall('del', record) end
end
local gone = redis.call('del', key)
local heard = ARGV[4] == '' and 0 or redis.pcall(ARGV[4], ARGV[3], '0')
if type(heard) == 'table' then heard = -1 end
return {n, gone, heard}
