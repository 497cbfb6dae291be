-- Concurrency: what is held at once, each hold with its instant, which is its name.
--
-- Holds are a string: when the last of them ends, how many places they hold, then entries, oldest
-- first, of an instant and its places. Unlike those of a log, entries are taken out wherever they
-- are, which a string does quickly: a thousand of them have 14 KB.

local function concurrency()
  local HEAD, ENTRY = 14, 14

  local function entry(o, i)
    return unpack_('>I7I7', o.raw, HEAD + (i - 1) * ENTRY + 1)
  end

  -- splice replaces count entries from the i-th on by a text.
  local function splice(o, i, count, text)
    local from = HEAD + (i - 1) * ENTRY
    o.raw = string.sub(o.raw, 1, from) .. text .. string.sub(o.raw, from + count * ENTRY + 1)
    o.n = (#o.raw - HEAD) / ENTRY
    o.at = o.n > 0 and (entry(o, o.n)) or 0
  end

  local function load(key)
    local raw = pcall_('GETRANGE', key, 0, -1)
    if type(raw) == 'table' then
      return nil, raw.err
    elseif raw == '' then
      return { key = key, raw = string.rep('\0', HEAD), new = true, n = 0, at = 0, used = 0, recovery = 0 }
    end
    local n = (#raw - HEAD) / ENTRY
    if n < 1 or n % 1 ~= 0 then
      return nil, 'STATE of ' .. #raw .. ' bytes'
    end
    local recovery, used = unpack_('>I7I7', raw)
    local o = { key = key, raw = raw, n = n, used = used, recovery = recovery }
    o.at = entry(o, n)
    if recovery > MAX or used > MAX or o.at > recovery then
      return nil, 'STATE of another schema'
    end
    if now < recovery and o.at - now > 10000 then
      -- A clock ahead of this one wrote it: see moveBack in Go.
      local by, moved = o.at - now, {}
      for i = 1, n do
        local at, units = entry(o, i)
        moved[i] = pack('>I7I7', at > by and at - by or 0, units)
      end
      splice(o, 1, n, table.concat(moved))
      o.recovery, o.changed = recovery - by, PLACES
    end
    return o
  end

  -- judge drops the holds that have ended.
  local function judge(l, o, time)
    local i, units = 1, 0
    if time >= o.recovery then
      i, units = o.n + 1, o.used
    else
      while i <= o.n do
        local at, held = entry(o, i)
        if at > time - l.window then
          break
        end
        i, units = i + 1, units + held
      end
    end
    if i > 1 then
      splice(o, 1, i - 1, '')
      o.used = o.used - units
    end
    return l.cap - o.used, o.at, o.used, 0, 1
  end

  -- settle notes when the last hold ends.
  local function settle(l, o)
    o.recovery = o.n > 0 and o.at + l.window or 0
  end

  -- hold holds places from now on.
  local function hold(o, units, time)
    local at = o.at + 1
    if time > at then
      at = time
    end
    splice(o, o.n + 1, 0, pack('>I7I7', at, units))
  end

  -- charge is charge. A forced hold on a log that has as many entries as its limit has places joins
  -- the newest.
  local function charge(l, o, _, _, _, _, units, time)
    units = clamp(o.used + units) - o.used
    o.used = o.used + units
    if units > 0 and o.n > 0 and o.n >= l.cap then
      local at, held = entry(o, o.n)
      at = time > at and time or at + 1
      splice(o, o.n, 1, pack('>I7I7', at, held + units))
    elseif units > 0 then
      hold(o, units, time)
    end
    while units < 0 do -- the newest first
      local at, held = entry(o, o.n)
      if held + units > 0 then
        splice(o, o.n, 1, pack('>I7I7', at, held + units))
        break
      end
      splice(o, o.n, 1, '')
      units = units + held
    end
    settle(l, o)
  end

  -- leaves returns when so many places will have come back: the instant of the hold that has the
  -- last of them.
  local function leaves(o, _, _, need)
    for i = 1, o.n do
      local at, held = entry(o, i)
      need = need - held
      if need <= 0 then
        return at
      end
    end
    return 0
  end

  -- amend changes a hold, if it is still there. By 0 renews it, and returns how many places it holds.
  local function amend(l, o, time, change, by)
    judge(l, o, time)
    local low, high = 1, o.n
    while low < high do
      local middle = low + high
      middle = (middle - middle % 2) / 2
      if entry(o, middle) < change.at then
        low = middle + 1
      else
        high = middle
      end
    end
    local at, held = 0, 0
    if low <= o.n then
      at, held = entry(o, low)
    end
    if at ~= change.at then
      return 0
    end
    o.changed = PLACES
    if by == 0 then
      local newest = o.at
      splice(o, low, 1, '')
      o.at = newest -- no instant is given twice
      hold(o, held, time)
    else
      if by < -held then
        by = -held
      end
      splice(o, low, 1, held + by > 0 and pack('>I7I7', at, held + by) or '')
      o.used = o.used + by
    end
    settle(l, o)
    return held
  end

  local function store(o, life)
    if o.n == 0 then
      call('DEL', o.key)
    else
      call('PSETEX', o.key, life, pack('>I7I7', o.recovery, o.used) .. string.sub(o.raw, HEAD + 1))
    end
  end

  return { load = load, judge = judge, charge = charge, leaves = leaves, amend = amend, store = store }
end
