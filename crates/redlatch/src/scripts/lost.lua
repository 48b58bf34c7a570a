-- Say how holds ended that are no longer there: who has each lock now, and who forced it free.
--
-- KEYS for each hold: the lock hash, and the record of forced releases if there are two keys for each
-- ARGV[1] number, echoed   ARGV[2] keys for each hold   ARGV[3] most fields of a hash to return   ARGV[4…] the field of each hold
--
-- Check and change: nothing; only reads, with pcall, because what has taken the place of a lock may be anything.
-- Reply:  {number, {field, value, …}, who forced it free and why or '', …}; the fields of what is no hash, or has too many, are empty.
-- Repeat: harmless.
local each, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local reply = {tonumber(ARGV[1])}
for at = 1, #KEYS / each do
  local key, fields, record = KEYS[each * (at - 1) + 1], {}, ''
  local size = redis.pcall('hlen', key)
  if type(size) == 'number' and size <= most then fields = redis.call('hgetall', key) end
  if each == 2 then record = redis.pcall('hget', KEYS[2 * at], ARGV[at + 3]) end
  if type(record) ~= 'string' then record = '' end
  reply[2 * at] = fields
  reply[2 * at + 1] = record
end
return reply
