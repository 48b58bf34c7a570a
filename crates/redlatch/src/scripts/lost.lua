-- Say how holds ended that are no longer there: who has each lock now, and who forced it free.
--
-- KEYS for each hold: the lock hash, and the record of forced releases if there are two keys for each
-- ARGV[1] request number   ARGV[2] keys for each hold   ARGV[3] most fields of a hash to return   ARGV[4…] the field of each hold
--
-- Check and change: nothing; only reads, with pcall, because what has taken the place of a lock may be anything.
-- Reply:  {number, {field, value, …}, who forced it free and why or '', how many ms ago or -1 if unknown, …}; the fields of what is no
--         hash, or has too many, are empty. A record that begins with a line break has the time on its second line.
-- Repeat: harmless.
local each, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local reply = {tonumber(ARGV[1])}
for at = 1, #KEYS / each do
  local key, fields, record, age = KEYS[each * (at - 1) + 1], {}, '', -1
  local size = redis.pcall('hlen', key)
  if type(size) == 'number' and size <= most then fields = redis.call('hgetall', key) end
  if each == 2 then record = redis.pcall('hget', KEYS[2 * at], ARGV[at + 3]) end
  if type(record) ~= 'string' then record = '' end
  local time, note = string.match(record, '^\n(%d+)\n(.*)$')
  if time then
    record = note
    local clock = redis.pcall('time')
    if clock[1] then age = math.max(clock[1] * 1000 + math.floor(clock[2] / 1000) - time, 0) end
  end
  reply[3 * at - 1] = fields
  reply[3 * at] = record
  reply[3 * at + 1] = age
end
return reply
