-- List every queue that has settings or waiting jobs.
--
-- KEYS     see constants.lua
-- ARGV     now
-- returns  {settings as name, text …; paused names; depths as name, number …; name and microseconds that its oldest ready job
--          has been due …}
local now, oldest = time_of_call(ARGV[1]), {}

local function due_since(queue, run_at)
  local since = math.max(0, now - run_at)
  if not oldest[queue] or oldest[queue] < since then oldest[queue] = since end
end

-- The first of each priority of a lane: a plain job's rank is its run_at. Jobs with a share stand aside too.
local function visit_lane(queue, lane)
  local from = '[' .. lane
  while true do
    local member = call('ZRANGEBYLEX', lanes, from, after_prefix(lane), 'LIMIT', 0, 1)[1]
    if not member then return end
    if #member < #lane + 28 then -- a claim removes it
      from = '(' .. member
      member = call('ZRANGEBYLEX', lanes, from, after_prefix(lane), 'LIMIT', 0, 1)[1]
      if not member or #member < #lane + 28 then return end
    end
    local priority = parse('>I4', member, #lane + 1)
    local id = sub(member, #lane + 13, #lane + 28)
    load_rows({ id })
    if rows_by_id[id] then due_since(queue, details(rows_by_id[id]).run_at) end
    if priority == 4294967295 then return end
    from = '[' .. lane .. pack('>I4', priority + 1)
  end
end

for _, kind in ipairs({ 'r', 's' }) do
  for _, version in ipairs(versions_under(lanes, kind)) do
    for _, queue in ipairs(names_under(lanes, kind .. version)) do
      each_lane(kind, version, queue, function(lane) visit_lane(queue, lane) end)
    end
  end
end
for _, queue in ipairs(names_under(aside, tostring(READY))) do
  local prefix = READY .. queue .. '\0'
  local member = call('ZRANGEBYLEX', aside, '[' .. prefix, after_prefix(prefix), 'LIMIT', 0, 1)[1]
  if member and #member >= #prefix + 8 then due_since(queue, parse('>I8', member, #prefix + 1) - 2251799813685248) end
end

local listed = {}
for queue, since in pairs(oldest) do
  listed[#listed + 1] = queue
  listed[#listed + 1] = since
end
return { call('HGETALL', queues), call('SMEMBERS', paused), call('HGETALL', depths), listed }
