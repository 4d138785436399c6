-- Finishes the last batch and claims the next: what a durable queue cannot do without, and nothing else.
--
-- KEYS[1] ready: a sorted set of ids by rank
-- KEYS[2] payloads: a hash of texts by id, each written once
-- KEYS[3] running: a hash of holds by id: "attempt:stamp:lease"
-- KEYS[4] outcomes: a hash of instants by id; a finished job stays
-- ARGV[1] how many may be claimed
-- ARGV[2] this claim's stamp; the batch that ends was claimed with the one before it
-- ARGV[3…] the ids of the batch that ends
-- returns the claimed jobs: id, payload, id, payload, …

local room, stamp = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = redis.call('TIME')[1]

local ended = {}
if #ARGV > 2 then
    local ids = {}
    for i = 3, #ARGV do ids[#ids + 1] = ARGV[i] end
    local holds = redis.call('HMGET', KEYS[3], unpack(ids))
    local outcomes = {}
    local mine = '1:' .. (stamp - 1) .. ':'
    for i, id in ipairs(ids) do
        if holds[i] and string.sub(holds[i], 1, #mine) == mine then
            ended[#ended + 1] = id
            outcomes[#outcomes + 1] = id
            outcomes[#outcomes + 1] = now
        end
    end
    if #ended > 0 then
        redis.call('HDEL', KEYS[3], unpack(ended))
        redis.call('HSET', KEYS[4], unpack(outcomes))
    end
end

local popped = redis.call('ZPOPMIN', KEYS[1], room)
if #popped == 0 then return {} end
local ids, holds = {}, {}
for i = 1, #popped, 2 do
    ids[#ids + 1] = popped[i]
    holds[#holds + 1] = popped[i]
    holds[#holds + 1] = '1:' .. stamp .. ':' .. (now + 60)
end
redis.call('HSET', KEYS[3], unpack(holds))
local payloads = redis.call('HMGET', KEYS[2], unpack(ids))
local claimed = {}
for i, id in ipairs(ids) do
    claimed[#claimed + 1] = id
    claimed[#claimed + 1] = payloads[i]
end
return claimed
