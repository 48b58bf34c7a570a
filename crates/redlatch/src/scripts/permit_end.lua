-- Delete leased permits, free and taken ones, or set when they are deleted.
--
-- KEYS[1] free permits     ARGV[1] request number   ARGV[2] ms until then, 0 for now
-- KEYS[2] permits taken    ARGV[3] channel       ARGV[4] publish command
--
-- Check:  the keys hold permits; anything else is an error, never a deletion.
-- Change: DEL or PEXPIRE of both keys. After DEL the message `1` makes waiters look again: ours learn that there is nothing
--         to wait for.
-- Reply:  {number, 1} when there were permits, {number, 0} when not.
-- Repeat: answers otherwise, so it is sent once.
local counter, taken = KEYS[1], KEYS[2]
local free = redis.call('get', counter)
if free and not string.find(free, '^-?%d+$') then
  return redis.error_reply('WRONGTYPE the key holds no number')
end
redis.call('zcard', taken)
local changed
if ARGV[2] == '0' then
  changed = redis.call('del', counter, taken)
  if changed > 0 then redis.pcall(ARGV[4], ARGV[3], '1') end
else
  changed = redis.call('pexpire', counter, ARGV[2]) + redis.call('pexpire', taken, ARGV[2])
end
return {tonumber(ARGV[1]), changed > 0 and 1 or 0}
