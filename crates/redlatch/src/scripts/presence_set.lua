-- Write what a client tells of itself, in place of what it told before.
--
-- KEYS[1] the client's record (hash)   ARGV[1] time ms until the record ends   ARGV[2…] fields and values in turns; none to end it now
--
-- Check:  nothing; the key has the id of the client in it, so nobody else writes it.
-- Change: the record has these fields and no others, and ends after that time.
-- Reply:  1.
-- Repeat: harmless.
-- Recovering: whole; the record holds nothing.
redis.call('del', KEYS[1])
if #ARGV > 1 then
  redis.call('hset', KEYS[1], unpack(ARGV, 2))
  redis.call('pexpire', KEYS[1], ARGV[1])
end
return 1
