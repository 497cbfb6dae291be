-- The groups that are neither lone nor plain takes: those with logs or penalties, and those of
-- counters that several groups ask. Counters are objects: four numbers, a log or a penalty.

local TAKE, ADJUST, UNDO, TWINS = 0, 1, 2, 3

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

local function judge_by(l, at, used, aux)
  return judges[l.algorithm](at, used, aux, now, l.tick, l.window, l.rate, l.unit, l.cap, l.most, l.edges)
end

local function charge_by(l, at, used, aux, units)
  return charges[l.algorithm](at, used, aux, units, l.tick, l.window, l.rate, l.unit)
end

local log, ladder = sliding_log(), penalty()
local objects, found = {}, {}
local denied = false -- a take of kind twins was denied
local NONE = {} -- the limit of a penalty

local function load(k, algorithm)
  local o, problem
  if not algorithm then
    o, problem = ladder.load(names[k])
  elseif algorithm == LOG then
    o, problem = log.load(names[k])
  else
    local a, u, x, r = decode(k, algorithm)
    if a then
      o = { at = a, used = u, aux = x, recovery = r, new = not states[k] }
    else
      problem = u
    end
  end
  objects[k] = o
  return problem
end

local function judge(l, o)
  if l.algorithm == LOG then
    return log.judge(l, o, now)
  elseif now < o.recovery then
    return judge_by(l, o.at, o.used, o.aux)
  end
  return judge_by(l, 0, 0, 0)
end

local function charge(l, o, a, u, x, first, units)
  o.changed, o.short = l.algorithm, l.most
  if l.algorithm == LOG then
    log.charge(l, o, a, u, x, first, units, now)
  else
    o.at, o.used, o.aux, o.recovery = charge_by(l, a, u, x, units)
  end
end

-- note adds what an ask found in a log, and when as many units as it needs will have left the
-- log.
local function note(o, u, base, first, need)
  local leaves = need > 0 and log.leaves(o, base, first, need) or 0
  found[#found + 1] = pack('>I7I7I7I7I7I7', o.at, u, o.recovery, leaves, o.base, o.total)
end

-- undo restores the state before a charge, if the counter has not changed since. Otherwise it
-- gives back the part of the charge that has not recovered yet.
local function undo(l, o, cost, was)
  local algorithm = l.algorithm
  o.changed, o.short = algorithm, l.most
  if algorithm == LOG then
    if o.at == was[1] and o.total == was[2] and o.recovery == was[5] then
      log.undo(o, cost, was[2], was[3], was[4])
    else
      log.give_back(l, o, cost, was[1], now)
    end
    return
  elseif o.at == was[1] and o.used == was[2] and o.aux == was[3] and o.recovery == was[4] then
    o.at, o.used, o.aux, o.recovery = was[5], was[6], was[7], was[8]
    o.short = 0 -- another limit may have written it
    return
  end
  local _, a, u, x = judge(l, o)
  if algorithm <= FIXED then
    if a == was[1] then
      u = clamp(u - cost)
    elseif algorithm == SLIDING and a == was[1] + l.window * l.tick then
      x = clamp(x - cost)
    end
  else
    u = clamp(u - clamp(cost * l.unit - (a - was[1]) / l.tick * l.rate))
  end
  o.at, o.used, o.aux, o.recovery = charge_by(l, a, u, x, 0)
end

-- violate records violations with the penalty at asks[i]: if a limit that it guards denies, each
-- denied take of the group is a violation, up to the one that leads to a ban.
local function violate(asks, i, pass, count)
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

-- group decides a group of n asks, which it reads at pos, and returns how many takes passed, or
-- why it could not be decided.
local function group(kind, count, n)
  local asks, problem = {}, nil
  for i = 1, n do
    local k, l, c, was
    k, l, c, pos = unpack_('>I2I2i8', blob, pos)
    l = limits[l] or NONE
    if kind == UNDO then
      was = {}
      for j = 1, 8 do
        was[j], pos = unpack_('>I7', blob, pos)
      end
    end
    if not objects[k] then
      problem = load(k, l.algorithm) or problem
    end
    asks[i] = { limit = l, object = objects[k], cost = c, was = was }
    if l == NONE then
      asks[i].penalty, pos = ladder.read(pos)
    end
  end
  for i = 1, n do
    local ask = asks[i]
    if ask.limit.edges and not problem then
      local room, t = judge(ask.limit, ask.object)
      if room then -- an ask before it may have emptied the counter
        room, t = judge_by(ask.limit, 0, 0, 0)
      end
      problem = not room and format('EDGES %.0f', t)
    end
  end
  if problem then
    return problem
  end

  local pass = count
  if kind == TAKE then
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
      local c, o = ask.cost, ask.object
      if ask.penalty then
        found[#found + 1] = o.raw
        violate(asks, i, pass, count)
      elseif ask.limit.algorithm == LOG then
        note(o, ask.used, ask.aux, ask.first, pass < count and c * (pass + 1) - ask.room or 0)
      end
      if pass > 0 and c > 0 and not ask.penalty then
        charge(ask.limit, o, ask.at, ask.used, ask.aux, ask.first, c * pass)
      end
    end
    return pass
  end

  for i = 1, n do
    local ask = asks[i]
    local l, o, c, was = ask.limit, ask.object, ask.cost, ask.was
    if was then
      undo(l, o, -c, was)
    else
      local room, a, u, x, first = judge(l, o)
      if kind == TWINS and l.algorithm == LOG then
        note(o, u, x, first, c - room)
      end
      if kind == TWINS and c > room then
        pass, denied = 0, true
      elseif c ~= 0 then
        charge(l, o, a, u, x, first, c)
      end
      if kind == ADJUST and l.algorithm == LOG then
        local left, _, in_log, base, live = judge(l, o)
        note(o, in_log, base, live, -left)
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
  if o and o.changed and not denied then
    if o.changed == 'penalty' then
      call('PSETEX', name, ttl(o.recovery), o.raw)
    elseif o.changed == LOG then
      log.store(o, ttl(o.recovery))
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
