-- Part of every verb after which edges must be resolved.
--
-- `edges` holds open edges as o, parent, f or s (the child's run_when), child, and as c, child, parent. Closed ones,
-- which keep the parent from being pruned, as k, parent, child. `unresolved` names the parents whose edges must be resolved.
-- Edges are resolved in rounds, each of which reads, decides, and writes; the next round resolves what a round adds.

-- Close all edges that lead to a job.
local function close_edges(child, kind, kept)
  for _, member in ipairs(call('ZRANGEBYLEX', edges, '[c' .. child, '[c' .. child .. string.rep('\255', 16))) do
    local parent = sub(member, 18)
    append(removals, edges, member)
    append(removals, edges, 'o' .. parent .. kind .. child)
    if kept then append(additions, edges, 0, 'k' .. parent .. child) end
  end
end

-- Resolve at most `limit` edges; returns how many were visited. Call it after `write_all`.
local function resolve(now, limit)
  local SUCCEEDED, SKIPPED = 5, 6
  -- result and reason as records.py packs them: none, and PARENT_CANCELLED
  local OUTCOME = '\146\192\217\037a job that it waits for was cancelled'
  local visited, lifted, marked, redirected

  local function kind_of(row) return has(row, FINISHED) and 'f' or 's' end

  local function close(parent, child)
    append(removals, edges, 'o' .. parent .. kind_of(child) .. child[ID])
    append(removals, edges, 'c' .. child[ID] .. parent)
    append(additions, edges, 0, 'k' .. parent .. child[ID])
  end

  local function lift_once(row)
    if not lifted[row[ID]] then
      leave_indexes(row)
      lifted[row[ID]] = row
    end
  end

  local function wait_for(row, waits)
    local found = details(row)
    found.waits = waits
    row[REST_TEXT] = rest_of(found)
  end

  local function release(parent, child)
    close(parent, child)
    lift_once(child)
    local found = details(child)
    -- due now (one that was due at once stays so, though the clock went back); a share of a fair queue stays
    if found.waits <= 1 and found.run_at <= math.max(now, found.created_at) then
      if found.rank == found.run_at then found.rank = now end
      found.run_at = now
    end
    wait_for(child, math.max(0, found.waits - 1))
    if found.waits <= 0 then
      set_state(child, found.run_at > now and SCHEDULED or READY)
      child[VERSION] = child[VERSION] + 1
    end
  end

  local function redirect(parent, next_id, child)
    local edge = 'c' .. child[ID] .. next_id
    if redirected[edge] or call('ZSCORE', edges, edge) then return release(parent, child) end -- it waits for that one already
    close(parent, child)
    redirected[edge] = { next_id, child }
    mark_unresolved(next_id)
  end

  -- At the end of a round: another parent may have cancelled the child meanwhile.
  local function write_redirected()
    for edge, ends in pairs(redirected) do
      local next_id, child = ends[1], ends[2]
      if child[STATE] == BLOCKED then
        append(additions, edges, 0, 'o' .. next_id .. kind_of(child) .. child[ID])
        append(additions, edges, 0, edge)
      end
    end
  end

  local function cancel(child)
    local _, _, hidden, keep, keep_last = more_of(child)
    close_edges(child[ID], kind_of(child), true)
    lift_once(child)
    free_key(child)
    wait_for(child, 0)
    set_state(child, CANCELLED)
    child[VERSION], child[FINISHED_AT], child[KEEP_LAST] = child[VERSION] + 1, now, keep_last
    child[PRUNE_AT] = keep == NONE and NONE or now + keep
    mark(child, SUSPECT, false)
    mark(child, HIDDEN, hidden ~= 0)
    mark(child, HAS_OUTCOME, true)
    append(field_writes, outcomes, child[ID], OUTCOME)
    if has(child, FOLLOWED) then mark_unresolved(child[ID]) end
    any_ended = true
  end

  -- What becomes of the open edges of a parent, by the run_when of their children.
  local function outcomes_of_edges(row)
    if not row then return { f = 'cancel', s = 'cancel' } end
    local state = row[STATE]
    if state <= RUNNING then return {} end
    local _, next_id = more_of(row)
    if next_id ~= '' then return { f = 'lead on', s = 'lead on', next_id = next_id } end
    if state == SUCCEEDED or state == SKIPPED then return { f = 'close', s = 'close' } end
    return { f = 'close', s = (state == CANCELLED or has(row, HIDDEN)) and 'cancel' or nil }
  end

  local function follow(parent, fate, next_id, child)
    if child[STATE] ~= BLOCKED then
      close_edges(child[ID], kind_of(child), true)
    elseif fate == 'close' then
      release(parent, child)
    elseif fate == 'lead on' then
      redirect(parent, next_id, child)
    else
      cancel(child)
    end
  end

  -- Returns whether all edges of this parent have been visited.
  local function resolve_parent(parent)
    local row = rows_by_id[parent]
    if unreadable_ids[parent] or #parent ~= 16 then -- no id; or a job that is set aside first, and then looked at again
      visited = visited + 1
      return true
    end
    local found = outcomes_of_edges(row)
    if row and not has(row, FOLLOWED) then
      mark(row, FOLLOWED, true)
      marked[parent] = row
    end
    visited = visited + 1
    for _, kind in ipairs({ 'f', 's' }) do
      if found[kind] then
        local prefix, room = 'o' .. parent .. kind, limit - visited + 1
        local listed = call('ZRANGEBYLEX', edges, '[' .. prefix, '[' .. prefix .. string.rep('\255', 16), 'LIMIT', 0, room + 1)
        local children = {}
        for number = 1, math.min(#listed, room) do children[number] = sub(listed[number], -16) end
        load_rows(children)
        for number, id in ipairs(children) do
          if #listed[number] == 34 and rows_by_id[id] then
            follow(parent, found[kind], found.next_id, rows_by_id[id])
          else
            append(removals, edges, listed[number])
            append(removals, edges, 'c' .. id .. parent)
          end
        end
        visited = visited + #children
        if #listed > room then return false end
      end
    end
    return true
  end

  local function round()
    local parents = call('ZRANGE', unresolved, 0, limit - visited - 1)
    if #parents == 0 then return false end
    rows_by_id, lifted, marked, redirected = {}, {}, {}, {}
    load_rows(parents)
    for _, parent in ipairs(parents) do
      if visited >= limit or not resolve_parent(parent) then break end
      append(removals, unresolved, parent)
    end
    write_redirected()
    for id, row in pairs(lifted) do
      reinsert(row)
      marked[id] = nil
    end
    for _, row in pairs(marked) do save(row) end
    write_all()
    return true
  end

  visited = 0
  reset_scores(edges)
  while visited < limit and round() do end
  rows_by_id = {}
  if next(changed_lines) then update_gates(now) end
  return visited
end
