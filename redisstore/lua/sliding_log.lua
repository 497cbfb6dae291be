-- Sliding log: the units charged in (now-w, now], each with its time.
--
-- A log is a string: when it recovers, its base, then entries, oldest first. An entry is a time
-- and the total of all units up to and including it. So every lookup is a binary search, and a
-- log of ten thousand entries is as fast as one of a hundred. Units up to the base are no longer
-- part of the log.
--
-- A log of less than PIECE bytes is read and written as a whole. Of a longer one, only what is
-- needed is read, and only its end is written.

local pcall_ = redis.pcall

local function sliding_log()
  local HEAD, ENTRY, PIECE = 14, 14, 1024

  -- clear empties a log.
  local function clear(o)
    o.raw, o.whole, o.tail = string.rep('\0', HEAD), true, nil
    o.n, o.kept, o.at, o.total, o.base, o.recovery = 0, 0, 0, 0, 0, 0
  end

  -- entry returns the time and the total of the i-th entry.
  local function entry(o, i)
    if i == o.n then
      return o.at, o.total
    end
    local from = HEAD + (i - 1) * ENTRY
    if from + ENTRY <= #o.raw then
      return unpack_('>I7I7', o.raw, from + 1)
    end
    return unpack_('>I7I7', call('GETRANGE', o.key, from, from + ENTRY - 1))
  end

  -- read reads the rest of a log, and adds what was charged in this call.
  local function read(o)
    if not o.whole then
      o.raw, o.whole = call('GETRANGE', o.key, 0, -1), true
    end
    if o.tail then
      o.raw = string.sub(o.raw, 1, HEAD + o.kept * ENTRY) .. pack('>I7I7', o.at, o.total)
      o.tail, o.kept = nil, o.n
    end
  end

  -- move_back moves a log to now that was written by a clock ahead of it: see moveBack in Go.
  local function move_back(o)
    local by, times = o.at - now, {}
    read(o)
    for i = 1, o.n do
      local at, total = entry(o, i)
      times[i] = pack('>I7I7', at > by and at - by or 0, total)
    end
    o.raw = string.rep('\0', HEAD) .. table.concat(times)
    o.at, o.recovery, o.changed = now, o.recovery - by, LOG
  end

  local function load(key)
    local raw = pcall_('GETRANGE', key, 0, PIECE - 1)
    if type(raw) == 'table' then
      return nil, raw.err
    end
    local size = #raw
    if size == 0 then
      local o = { key = key, new = true }
      clear(o)
      return o
    elseif size == PIECE then
      size = call('STRLEN', key)
    end
    local n = (size - HEAD) / ENTRY
    if n < 1 or n % 1 ~= 0 then
      return nil, 'STATE of ' .. size .. ' bytes'
    end
    local recovery, base = unpack_('>I7I7', raw)
    local o = { key = key, raw = raw, n = n, kept = n, base = base, recovery = recovery }
    o.whole = size < PIECE
    local from = HEAD + (n - 1) * ENTRY
    if from + ENTRY <= #raw then
      o.at, o.total = unpack_('>I7I7', raw, from + 1)
    else
      o.at, o.total = unpack_('>I7I7', call('GETRANGE', key, from, from + ENTRY - 1))
    end
    if recovery > MAX or base > o.total or o.total > MAX or o.at > MAX then
      return nil, 'STATE of another schema'
    end
    if now < recovery and o.at > now then
      move_back(o)
    end
    return o
  end

  -- after returns the first entry, starting with low, whose time (field 1) or total (field 2) is
  -- above the value, or n+1.
  local function after(o, low, field, value)
    local high = o.n + 1
    while low < high do
      local middle = low + high
      middle = (middle - middle % 2) / 2
      local at, total = entry(o, middle)
      if (field == 1 and at or total) > value then
        high = middle
      else
        low = middle + 1
      end
    end
    return low
  end

  -- judge also returns the first entry that is still in the log. Aux is the base.
  local function judge(l, o, time)
    if time >= o.recovery then
      return l.cap, 0, 0, o.total, o.n + 1
    end
    local first, base = after(o, 1, 1, time - l.window), o.base
    local _, total
    if first > 1 then
      _, total = entry(o, first - 1)
      if total > base then
        base = total
      end
    end
    -- Units that have left the log do not come back under a longer window.
    if first <= o.n then
      _, total = entry(o, first)
      if total <= base then
        first = after(o, first + 1, 2, base)
      end
    end
    local used = o.total - base
    return l.cap - used, o.at, used, base, first
  end

  -- cut makes the i-th entry the last, and sets its total.
  local function cut(o, i, total)
    read(o)
    o.at = entry(o, i)
    o.raw = string.sub(o.raw, 1, HEAD + (i - 1) * ENTRY) .. pack('>I7I7', o.at, total)
    o.n, o.kept, o.total = i, i, total
  end

  -- rebase subtracts the base from all totals, before they become too large.
  local function rebase(o, first)
    read(o)
    local entries = {}
    for i = first, o.n do
      local at, total = entry(o, i)
      entries[#entries + 1] = pack('>I7I7', at, total - o.base)
    end
    o.raw = string.rep('\0', HEAD) .. table.concat(entries)
    o.n, o.kept, o.total, o.base = #entries, #entries, o.total - o.base, 0
  end

  -- charge takes the results of judge, and changes the object.
  local function charge(l, o, _, used, base, first, units, time)
    o.base = base
    units = clamp(used + units) - used
    if used + units == 0 then
      clear(o)
      return
    end
    if units > 0 then
      if o.total + units > MAX then
        rebase(o, first)
        first = 1
      end
      -- Units are added to the newest entry if it has the same time, or if the log already has as
      -- many entries as its limit has units.
      local live = o.n - first + 1
      if live > 0 and (time == o.at or live >= l.cap) then
        if not o.tail then
          o.tail, o.kept = true, o.n - 1
        end
      else
        o.n, o.tail = o.n + 1, true
      end
      o.at, o.total = time, o.total + units
    elseif units < 0 then
      -- A refund removes the newest units first.
      local total = o.total + units
      cut(o, after(o, first, 2, total - 1), total)
    end
    o.recovery = o.at + l.window
  end

  -- leaves returns the time of the entry with which the needed units, counted from the base, will
  -- have left the log.
  local function leaves(o, base, first, need)
    local i = after(o, first, 2, base + need - 1)
    if i > o.n then
      return 0
    end
    return (entry(o, i))
  end

  -- amend changes the charge of an instant, at its entry: see logAmend in Go.
  local function amend(l, o, time, change, by)
    local _, _, used, base, first = judge(l, o, time)
    local i = after(o, first, 1, change.at - 1)
    local before, units = base, 0
    if i > first then
      before = select(2, entry(o, i - 1))
    end
    if i <= o.n then
      local at, total = entry(o, i)
      if at == change.at then
        units = total - before
      end
    end
    if units > 0 and by < -units then
      by = -units
    elseif units == 0 and (by <= 0 or change.at <= time - l.window) then
      return
    end
    o.changed = LOG
    if used + by == 0 then
      clear(o)
      return
    end
    o.base = base
    read(o)
    local rest, from = {}, i
    if units == 0 and o.n - first + 1 < l.cap then
      rest[1] = pack('>I7I7', change.at, before + by)
    elseif units == 0 and i > o.n then
      from = o.n -- a full log: it counts as long as a newer entry
    end
    for j = from, o.n do
      local at, total = entry(o, j)
      if not (j == i and units > 0 and units + by == 0) then
        rest[#rest + 1] = pack('>I7I7', at, total + by)
      end
    end
    o.raw = string.sub(o.raw, 1, HEAD + (from - 1) * ENTRY) .. table.concat(rest)
    o.n = from - 1 + #rest
    o.kept = o.n
    o.at, o.total = unpack_('>I7I7', o.raw, HEAD + (o.n - 1) * ENTRY + 1)
    o.recovery = o.at + l.window
  end

  local function store(o, life)
    if o.recovery == 0 then
      call('DEL', o.key)
      return
    end
    local gone = after(o, 1, 2, o.base) - 1
    local head = pack('>I7I7', o.recovery, o.base)
    if o.whole or gone > o.n / 2 then
      read(o)
      call('PSETEX', o.key, life, head .. string.sub(o.raw, HEAD + gone * ENTRY + 1))
      return
    end
    call('SETRANGE', o.key, 0, head)
    if o.tail then
      call('SETRANGE', o.key, HEAD + o.kept * ENTRY, pack('>I7I7', o.at, o.total))
    end
    call('PEXPIRE', o.key, life)
  end

  return {
    load = load, judge = judge, charge = charge, leaves = leaves,
    amend = amend, store = store,
  }
end
