-- Answer the simple questions about a lock.
--
-- KEYS[1] lock hash   ARGV[1] owner field
--
-- Check and change: nothing; only reads, on the master because it is a script.
-- Reply:  {ttl ms (-2 free, -1 without end), holds of the owner}.
-- Repeat: harmless.
return {redis.call('pttl', KEYS[1]), tonumber(redis.call('hget', KEYS[1], ARGV[1]) or '0')}
