-- Read a stock, set it without looking (which is what makes an unguarded sale oversell), or remove it.
--
-- KEYS[1] stock counter   ARGV[1] new amount, '' to read only, or 'none' to remove it
--
-- Check:  nothing.   Change: SET or DEL as asked.   Reply: the amount afterwards, -2 when there is none.
-- Repeat: harmless.
-- Recovering: in parts; it does one thing or the other.
if ARGV[1] == 'none' then
  redis.call('del', KEYS[1])
elseif ARGV[1] ~= '' then
  redis.call('set', KEYS[1], ARGV[1])
end
return tonumber(redis.call('get', KEYS[1]) or '-2')
