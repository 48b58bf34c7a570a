-- Read one page of the hashes whose names match a pattern, for a listing of locks.
--
-- ARGV[1] cursor   ARGV[2] glob pattern   ARGV[3] keys to look at   ARGV[4] most fields of a hash to return
--
-- Check and change: nothing; only reads. The cursor makes the listing resumable, so that no call is long.
-- Reply:  {next cursor, {key, ttl ms, field count, {field, value, …}}, …}.
local page = redis.call('scan', ARGV[1], 'match', ARGV[2], 'count', ARGV[3], 'type', 'hash')
local reply = {page[1]}
for _, key in ipairs(page[2]) do
  local size = redis.call('hlen', key)
  local fields = {}
  if size <= tonumber(ARGV[4]) then fields = redis.call('hgetall', key) end
  reply[#reply + 1] = {key, redis.call('pttl', key), size, fields}
end
return reply
