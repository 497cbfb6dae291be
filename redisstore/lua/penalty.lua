-- Penalty: violations, each with its time, and the bans that follow from them. Bans are not
-- stored: whether the newest violation led to one is computed from those before it.
--
-- A state is a string: when it recovers, then the times of violations, oldest
-- first.

local function penalty()
  local ENTRY = 7

  local function load(key)
    local raw = pcall_('GETRANGE', key, 0, -1)
    if type(raw) == 'table' then
      return nil, raw.err
    elseif raw == '' then
      return { key = key, raw = raw, recovery = 0, new = true }
    end
    local n = #raw / ENTRY
    if n < 2 or n % 1 ~= 0 then
      return nil, 'STATE of ' .. #raw .. ' bytes'
    end
    local recovery, newest = unpack_('>I7', raw), unpack_('>I7', raw, #raw - ENTRY + 1)
    if recovery > MAX or newest > recovery then
      return nil, 'STATE of another schema'
    end
    local o = { key = key, raw = raw, recovery = recovery }
    if now < recovery and newest > now then
      -- A clock ahead of this one wrote it: see moveBack in Go.
      local times = {}
      for i = 0, n - 1 do
        local t = unpack_('>I7', raw, i * ENTRY + 1) - (newest - now)
        times[i + 1] = pack('>I7', t > 0 and t or 0)
      end
      o.raw, o.recovery, o.changed = table.concat(times), recovery - (newest - now), 'penalty'
    end
    return o
  end

  -- entry returns the time of the i-th violation, the oldest being the first.
  local function entry(o, i)
    return (unpack_('>I7', o.raw, i * ENTRY + 1))
  end

  -- count returns how many of n violations still count at a time.
  local function count(o, n, within, at)
    local i = n
    while i > 0 and entry(o, i) > at - within do
      i = i - 1
    end
    return n - i
  end

  -- ban returns the length of the ban for this number of violations, or 0.
  local function ban(p, violations)
    local step = violations - p.threshold + 1
    if step < 1 then
      return 0
    end
    return p.bans[step] or p.bans[p.steps]
  end

  -- banned returns whether the subject is banned now.
  local function banned(p, o)
    local n = #o.raw / ENTRY - 1
    if n < p.threshold or now >= o.recovery then
      return false
    end
    local last = entry(o, n)
    local length = ban(p, count(o, n, p.within, last))
    return length > 0 and now < last + length
  end

  -- record adds violations, up to the one that leads to a ban, and drops those that no longer
  -- count.
  local function record(p, o, violations)
    local n = #o.raw / ENTRY - 1
    n = now < o.recovery and count(o, n, p.within, now) or 0
    local missing = p.threshold - n
    if missing < 1 then
      missing = 1
    end
    if violations > missing then
      violations = missing
    end
    local most = p.threshold + p.steps - 1 - violations
    if n > most then
      n = most
    end
    local old = n > 0 and string.sub(o.raw, -n * ENTRY) or ''
    local length = ban(p, n + violations)
    o.recovery = now + (length > p.within and length or p.within)
    o.raw, o.changed = pack('>I7', o.recovery) .. old .. string.rep(pack('>I7', now), violations), 'penalty'
  end

  -- read reads a penalty's numbers from the call.
  local function read(at)
    local p = { bans = {} }
    p.guarded, p.threshold, p.within, p.steps, at = unpack_('>I2I2I7B', blob, at)
    for i = 1, p.steps do
      p.bans[i], at = unpack_('>I7', blob, at)
    end
    return p, at
  end

  return { load = load, banned = banned, record = record, read = read }
end
