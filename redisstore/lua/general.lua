-- The groups that are neither lone nor plain takes: those with logs or penalties, and those of
-- counters that several groups ask. Counters are objects: four numbers, a log or a penalty.

local TAKE, ADJUST, UNDO, TWINS, RESET = 0, 1, 2, 3, 4
local LATEST = 32 -- how many refunds of a bucket are kept one by one

local limits = {}
for i = 1, limit_count do
  local algorithm, tick, window, rate, unit, cap, most, edges
  algorithm, tick, window, rate, unit, cap, most, pos = unpack_('>BI3I7I7I7I7I7', blob, pos)
  if algorithm == FIXED and window == 0 then
    edges, pos = fixed_edges(pos)
  end
  limits[i] = {
    algorithm = algorithm, tick = tick, window = window, rate = rate, unit = unit, cap = cap, most = most,
    edges = edges,
  }
end

local function judge_by(l, at, used, aux, recovery)
  return judges[l.algorithm](at, used, aux, now, l.tick, l.window, l.rate, l.unit, l.cap, l.most, l.edges, recovery)
end

local function charge_by(l, at, used, aux, units)
  return charges[l.algorithm](at, used, aux, units, l.tick, l.window, l.rate, l.unit)
end

local logs = { [LOG] = kinds % 8 >= 4 and sliding_log(), [PLACES] = kinds % 64 >= 32 and concurrency() }
local ladder = kinds % 128 >= 64 and penalty()
local objects, found, forgotten = {}, {}, {}
local NONE = {} -- the limit of a penalty

local function load(k, algorithm)
  local o, problem
  if not algorithm then
    o, problem = ladder.load(names[k])
  elseif logs[algorithm] then
    o, problem = logs[algorithm].load(names[k])
  elseif forgotten[k] then
    o = { at = 0, used = 0, aux = 0, recovery = 0, new = true }
  else
    local a, u, x, r = decode(k, algorithm)
    if a then
      o = { at = a, used = u, aux = x, recovery = r, new = states[k] == none }
    else
      problem = u
    end
  end
  objects[k] = o
  return problem
end

-- judge also returns, for a log, the first entry that is still in it, and for others whether the
-- counter has moved.
local function judge(l, o)
  if logs[l.algorithm] then
    return logs[l.algorithm].judge(l, o, now)
  elseif now >= o.recovery then
    return judge_by(l, 0, 0, 0, 0)
  end
  local a, x, r, ahead = o.at, o.aux, o.recovery, false
  if a > now and (l.algorithm <= FIXED or a - now >= l.tick) then
    if l.algorithm == FIXED then
      x = x - (a - now)
    end
    a, r, ahead = now, r - (a - now), true
  end
  local room, at, used, aux, moved = judge_by(l, a, o.used, x, r)
  return room, at, used, aux, moved or ahead
end

local function charge(l, o, a, u, x, first, units)
  o.changed, o.short = l.algorithm, l.most
  if logs[l.algorithm] then
    logs[l.algorithm].charge(l, o, a, u, x, first, units, now)
  else
    o.at, o.used, o.aux, o.recovery = charge_by(l, a, u, x, units)
  end
end

-- note adds what an ask found in a log, and when as many units as it needs will have left the
-- log. The newest entry and the recovery are those of the log, unless it has changed since.
local function note(l, o, u, base, first, need, at, recovery)
  local leaves = need > 0 and logs[l.algorithm].leaves(o, base, first, need) or 0
  found[#found + 1] = pack('>I7I7I7I7', at or o.at, u, recovery or o.recovery, leaves)
end

local look, amend, give, reset
if kinds >= 128 then -- not all groups are takes
  -- past reads what is kept beside a counter at a place of KEYS: when it was reset, until when that
  -- matters, and the refunds of a bucket, whose units then had unit parts: from when the charge was, when
  -- it was given back, and how many parts.
  local function past(place)
    local raw = place > 0 and pcall_('GETRANGE', names[place], 0, -1)
    if type(raw) == 'string' and #raw > 0 and #raw % 21 == 0 then
      local p = {}
      p.reset, p.last, p.unit = unpack_('>I7I7I7', raw)
      if p.last > now then
        for i = 22, #raw, 21 do
          local r = {}
          r.from, r.at, r.parts = unpack_('>I7I7I7', raw, i)
          p[#p + 1] = r
        end
        return p
      end
    end
    return { reset = 0, last = 0, unit = 0 }
  end

  local function set_past(place, p)
    local all = { pack('>I7I7I7', p.reset, p.last, p.unit) }
    for i, r in ipairs(p) do
      all[i + 1] = pack('>I7I7I7', r.from, r.at, r.parts)
    end
    call('PSETEX', names[place], ttl(p.last), table.concat(all))
  end

  -- past_in converts the refunds of a past, as Past.in does in Go.
  local function past_in(p, unit)
    for _, r in ipairs(p.unit ~= unit and p or {}) do
      r.parts = clamp(ceil_div(r.parts, p.unit) * unit)
    end
    p.unit = unit
    return p
  end

  -- refunded returns how much of what was used before a charge was given back since, as Past.refunded
  -- does in Go.
  local function refunded(p, charged)
    local sum = 0
    for _, r in ipairs(p) do
      if r.from <= charged and charged <= r.at then
        sum = clamp(sum + r.parts)
      end
    end
    return sum
  end

  -- refund notes that parts of a charge are given back now, as Past.refund does in Go.
  local function refund(place, p, from, parts, recovery)
    if parts <= 0 or place == 0 then
      return
    end
    p[#p + 1] = { from = from, at = now, parts = parts }
    local all = { reset = p.reset, last = p.last > recovery and p.last or recovery, unit = p.unit }
    for i, r in ipairs(p) do
      local n = #all
      if n > 1 and i <= #p - LATEST and r.at - all[n - 1].at <= 3 * (now - r.at) then
        local before = all[n]
        r.from = before.from < r.from and before.from or r.from
        r.parts = clamp(r.parts + before.parts)
        all[n] = r
      else
        all[n + 1] = r
      end
    end
    set_past(place, all)
  end

  -- look reads a counter, which may have to be moved.
  function look(l, o)
    local _, a, u, x, moved = judge(l, o)
    if moved == true then
      charge(l, o, a, u, x, nil, 0)
    end
  end

  -- amend changes a charge by units, as Limit.Amend does in Go, unless that was done before or the
  -- counter was reset since. It returns 0 if it changed nothing, -1 if that is because it was made before, and -2
  -- if it was made together with others; of a hold, how many places it has then;
  -- of others 1, and of a bucket what was given back before in addition.
  function amend(l, o, by, change, undo)
    local p = past(change.reset)
    local mark = past(change.once)
    local made = mark.last > 0
    if change.once > 0 and not made then
      local last = change.keep > 0 and now + change.keep or math.max(change.last, now + ONCE)
      set_past(change.once, { reset = now, last = last, unit = change.sum })
    end
    if made or change.at <= p.reset then
      look(l, o)
      return made and (mark.unit == change.sum and -1 or -2) or 0
    end
    if logs[l.algorithm] then
      local held = logs[l.algorithm].amend(l, o, now, change, by)
      local _, a, u, x, first = judge(l, o)
      charge(l, o, a, u, x, first, 0)
      return held or 1
    end
    local _, a, u, x = judge(l, o)
    local before = 0
    o.changed, o.short = l.algorithm, l.most
    if l.algorithm == FIXED then
      if a <= change.at and change.at < x then
        u = clamp(u + by)
      end
    elseif l.algorithm == SLIDING then
      local span = l.window * l.tick
      if change.at >= a and change.at < a + span then
        u = clamp(u + by)
      elseif change.at >= a - span and change.at < a then
        x = clamp(x + by)
      end
    elseif by < 0 then
      -- What was used before the charge, and was not given back, has drained first: see
      -- bucketAmend in Go.
      local at, charged = whole(change.at, l.tick), clamp(change.cost * l.unit)
      before = refunded(past_in(p, l.unit), change.at)
      local held = clamp((whole(change.last, l.tick) - at - 1) * l.rate)
      held = clamp(held - charged - before)
      local back = clamp(charged - clamp(clamp((whole(now, l.tick) - at) * l.rate) - held))
      if back > -by * l.unit then
        back = -by * l.unit
      end
      if back > u then
        back = u
      end
      local _, _, _, recovery = charge_by(l, a, u, x, 0)
      if not undo or change.at < now then -- otherwise no one has seen it
        refund(change.reset, p, change.at, back, recovery)
      end
      u, by = u - back, 0
    end
    o.at, o.used, o.aux, o.recovery = charge_by(l, a, u, x, l.algorithm >= BUCKET and by or 0)
    return 1 + before
  end

  -- give notes what an adjustment without a charge gives back of a bucket.
  function give(l, place, a, u, x, units)
    if l.algorithm >= BUCKET and not logs[l.algorithm] then
      local _, _, _, recovery = charge_by(l, a, u, x, 0)
      local back = units * l.unit
      refund(place, past_in(past(place), l.unit), 0, back > u and u or back, recovery)
    end
  end

  -- reset forgets a counter. As long as charges from before might be given back, a mark remains.
  function reset(k, l, place)
    local o = objects[k]
    call('DEL', names[k])
    objects[k], forgotten[k] = nil, true -- the answer has the state as it was found
    if place == 0 then
      return
    end
    local p = past(place)
    if o and o.recovery > now then
      p = { reset = now, last = math.max(now + 2 * (l.window or 0) * (l.tick or 0), o.recovery, p.last), unit = 0 }
      set_past(place, p)
    elseif p.last == 0 then
      call('DEL', names[place])
    end
  end
end

local violate
if ladder then
  -- violate records violations with the penalty at asks[i]: if a limit that it guards denies, each
  -- denied take of the group is a violation, up to the one that leads to a ban.
  function violate(asks, i, pass, count)
    local ask = asks[i]
    local p, o = ask.penalty, ask.object
    for j = i - p.guarded, i - 1 do
      if ask.cost > 0 and pass < count and asks[j].cost * (pass + 1) > asks[j].room then
        if not ladder.banned(p, o) then
          ladder.record(p, o, count - pass)
        end
        return
      end
    end
  end
end

-- group decides a group of n asks, which it reads at pos, and returns how many takes passed, or
-- why it could not be decided.
local function group(kind, count, n)
  local asks, problem = {}, nil
  for i = 1, n do
    local k, l, c, change
    k, l, c, pos = unpack_('>I2I2i8', blob, pos)
    l = limits[l] or NONE
    if kind == ADJUST or kind == UNDO or kind == RESET then
      change = {}
      change.at, change.cost, change.last, change.reset, change.once, change.keep, change.sum, pos =
        unpack_('>I7I7I7I2I2I7I7', blob, pos)
      if kind == ADJUST and change.at > now + 10000 then
        problem = 'CHARGE ' .. i
      end
    end
    if not objects[k] then
      problem = load(k, l.algorithm) or problem
      if kind == RESET then
        problem = nil -- whatever it holds
      end
    end
    asks[i] = { limit = l, object = objects[k], cost = c, change = change, key = k }
    if l == NONE and kind ~= RESET then
      asks[i].penalty, pos = ladder.read(pos)
    end
  end
  for i = 1, n do
    local ask = asks[i]
    if ask.limit.edges and kind ~= RESET and not problem then
      local room, t = judge(ask.limit, ask.object)
      if room then -- an ask before it may have emptied the counter
        room, t = judge_by(ask.limit, 0, 0, 0, 0)
      end
      problem = not room and format('EDGES %.0f', t)
    end
  end
  if problem then
    return problem
  end

  local pass = count
  if kind == RESET then
    for i = 1, n do
      reset(asks[i].key, asks[i].limit, asks[i].change.reset)
    end
    return pass
  elseif kind == TAKE then
    for i = 1, n do
      local ask = asks[i]
      if ask.penalty then
        if ladder.banned(ask.penalty, ask.object) then
          pass = 0
        end
      else
        ask.room, ask.at, ask.used, ask.aux, ask.first = judge(ask.limit, ask.object)
        local c, room = ask.cost, ask.room
        if c > room then
          pass = 0
        elseif c * pass > room then
          pass = whole(room, c)
        end
      end
    end
    for i = 1, n do
      local ask = asks[i]
      local l, c, o = ask.limit, ask.cost, ask.object
      if ask.penalty then
        found[#found + 1] = o.raw
        violate(asks, i, pass, count)
      elseif l.algorithm == PLACES then
        -- Each hold has an instant of its own, and who is denied may wait for one of these.
        local at, recovery = o.at, o.recovery
        for _ = 1, c > 0 and pass or 0 do
          charge(l, o, nil, nil, nil, nil, c)
        end
        note(l, o, ask.used, nil, nil, pass < count and c * (pass + 1) - ask.room or 0, at, recovery)
      elseif l.algorithm == LOG then
        note(l, o, ask.used, ask.aux, ask.first, pass < count and c * (pass + 1) - ask.room or 0)
        if c * pass > 0 then
          charge(l, o, ask.at, ask.used, ask.aux, ask.first, c * pass)
        end
      elseif c * pass > 0 or ask.first then -- it was charged, or moved
        charge(l, o, ask.at, ask.used, ask.aux, nil, c * pass)
      end
    end
    return pass
  end

  for i = 1, n do
    local ask = asks[i]
    local l, o, c, change = ask.limit, ask.object, ask.cost, ask.change
    if change and change.cost > 0 then
      local held = amend(l, o, c, change, kind == UNDO)
      if kind == ADJUST then
        found[#found + 1] = format('%.0f', held)
      end
    else
      local room, a, u, x, first = judge(l, o)
      if kind == TWINS and logs[l.algorithm] then
        note(l, o, u, x, first, c - room)
      end
      if kind == TWINS and c > room then
        pass = 0
      elseif c ~= 0 or first == true then
        if c < 0 then
          give(l, change.reset, a, u, x, -c)
        end
        charge(l, o, a, u, x, first, c)
      end
    end
    if kind == ADJUST and logs[l.algorithm] then
      local left, _, in_log, base, live = judge(l, o)
      note(l, o, in_log, base, live, -left)
    end
  end
  if pass == 0 then
    -- Twins: nothing was charged, but what had to be moved is moved.
    objects = {}
    for i = 1, n do
      local l, k = asks[i].limit, asks[i].key
      if not objects[k] then
        load(k, l.algorithm)
        look(l, objects[k])
      end
    end
  end
  return pass
end

for g = lone_count + plain_count + 1, group_count do
  local kind, count, n
  kind, count, n, pos = unpack_('>BI2I2', blob, pos)
  local value = group(kind, count, n)
  if value ~= count then
    say(g, value)
  end
end

for k, name in ipairs(names) do
  local o = objects[k]
  if o and o.changed then
    if o.changed == 'penalty' then
      call('PSETEX', name, ttl(o.recovery), o.raw)
    elseif logs[o.changed] then
      logs[o.changed].store(o, ttl(o.recovery))
    else
      write(k, o.changed, o.short, nil, nil, nil, o.at, o.used, o.aux, o.recovery)
    end
  elseif o and not o.new then
    heal(k, o.recovery)
  end
end

finish()
for i = 1, #found do
  out[2 + 2 * denied_count + state_count + i] = found[i]
end
return out
