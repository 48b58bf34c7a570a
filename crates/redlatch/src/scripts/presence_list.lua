-- Read one page of the clients that tell of themselves.
--
-- ARGV[1] cursor   ARGV[2] glob pattern of their records   ARGV[3] keys to look at
--
-- Check and change: nothing; only reads. The cursor makes the listing resumable, so that no call is long.
-- Reply:  {next cursor, key of a record, …}.
-- Repeat: harmless.
local page = redis.call('scan', ARGV[1], 'match', ARGV[2], 'count', ARGV[3], 'type', 'hash')
local reply = page[2]
table.insert(reply, 1, page[1])
return reply
