-- Read what a client tells of itself.
--
-- KEYS[1] the client's record (hash)
--
-- Check and change: nothing; only reads, on the master because it is a script.
-- Reply:  {ms until the record ends (-2 for none), field, value, …}.
-- Repeat: harmless.
local reply = redis.call('hgetall', KEYS[1])
table.insert(reply, 1, redis.call('pttl', KEYS[1]))
return reply
