-- The beginning of scripts that publish plain and sharded messages: stands before their text where `both` is the publish command.
--
-- A server counts the receivers of each kind; the sum is answered. Where one kind is refused or unknown, the other counts.
local redis = setmetatable({
  pcall = function(command, channel, ...)
    if command ~= 'both' then return redis.pcall(command, channel, ...) end
    local plain, sharded = redis.pcall('publish', channel, ...), redis.pcall('spublish', channel, ...)
    if type(plain) == 'table' then return sharded end
    if type(sharded) == 'table' then return plain end
    return plain + sharded
  end,
}, {__index = redis})
