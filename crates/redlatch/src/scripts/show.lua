-- Read everything that there is to know of one lock.
--
-- KEYS[1] lock key   KEYS[2] token counter   ARGV[1] most fields to return
--
-- Check and change: nothing; only reads.
-- Reply:  {type, ttl ms, token or '', field count, {field, value, …}}; the list is empty for keys that are no hash.
local key = KEYS[1]
local kind = redis.call('type', key)['ok']
local token = redis.pcall('get', KEYS[2])
if type(token) ~= 'string' then token = '' end
local fields, size = {}, 0
if kind == 'hash' then
  size = redis.call('hlen', key)
  if size <= tonumber(ARGV[1]) then fields = redis.call('hgetall', key) end
end
return {kind, redis.call('pttl', key), token, size, fields}
