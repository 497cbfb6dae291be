-- The entry point, and all that most calls need. One call carries groups, which are decided one after another
-- at one instant, each for itself:
--
--   lone    a take of one ask, whose counter no other group asks and is no log
--   plain   a take of several such asks, of which none has a penalty
--   take    asks that are charged all or none
--   adjust  asks that are charged, or given back, without asking
--   undo    asks of a take that passed here and was denied elsewhere
--   twins   a take that asks one counter more than once; alone but for peeks
--
-- A take has a count: as many equal takes, of which the first that fit pass. Lone
-- and plain takes come first and are decided here, by the way; the others in general.lua.
--
-- KEYS are the counters, those of logs last. ARGV[1] is the call, in binary:
-- encode in call.go writes it and says how. A key is read once and written once,
-- however many groups ask it.
--
-- The answer is the time, then one value for each group, then the state of each
-- counter as it was found (but for logs), then what each ask of a log found. A
-- group's value is the number of takes that passed, or, as text, why it could
-- not be decided; such a group changed nothing. The decisions themselves are
-- made from this by the caller, with the functions that this script follows.

local SLIDING, FIXED, LOG, BUCKET = 0, 1, 2, 3
local SECOND, LAST = 1000000, 7258118400000000 -- the year 2200
local WRAP, AHEAD = 281474976710656, 1099511627776 -- 9 years; 12 days, by which a clock may step back

local blob = ARGV[1]
local now, limit_count, state_count, lone_count, plain_count, group_count, pos = unpack_('>I7I2I2I2I2I2', blob)
if now == 0 then
  local t = call('TIME')
  now = t[1] * SECOND + t[2]
  if now > LAST then
    now = LAST
  end
else
  now = now - 1
end

local limits = {}
for i = 1, limit_count do
  local algorithm, tick, window, rate, unit, cap, most
  local from = pos
  algorithm, tick, window, rate, unit, cap, most, pos = unpack_('>BI3I7I7I7I7I7', blob, pos)
  local judge, charge, edges
  if algorithm == SLIDING then
    judge, charge = sliding_window(tick, window, cap, most)
  elseif algorithm == FIXED then
    if window == 0 then
      local n
      edges, n, pos = {}, unpack_('>B', blob, pos)
      for e = 1, n do
        edges[e], pos = unpack_('>I7', blob, pos)
      end
    end
    judge, charge = fixed_window(window, cap, edges)
  elseif algorithm == BUCKET then
    judge, charge = token_bucket(tick, cap, rate, unit)
  elseif algorithm ~= LOG then
    judge, charge = leaky_bucket(tick, cap, rate, unit)
  end
  limits[i] = {
    algorithm = algorithm, judge = judge, charge = charge, edges = edges, window = window, cap = cap, from = from,
    short = most,
  }
end

local states = state_count > 0 and call('MGET', unpack(KEYS, 1, state_count)) or {}
local out = { now, false, false }

-- decode returns the numbers of a counter, or false and what is wrong with it.
local function decode(k, algorithm)
  local raw = states[k]
  if not raw then
    if call('EXISTS', KEYS[k]) == 1 then
      return false, 'WRONGTYPE'
    end
    return 0, 0, 0, 0
  end
  local a, u, x, r
  if #raw == 12 and algorithm <= FIXED then
    a, r, u, x = unpack_('>I5I3I2I2', raw)
    a = a * SECOND
    r = a + r * SECOND
    if algorithm == FIXED then
      x = r
    end
  elseif #raw == 12 then
    a, u, x = unpack_('>I6I4I2', raw)
    -- Of a time, 48 bits are enough to tell which it is: not far from now.
    a = now + AHEAD - (now + AHEAD - a) % WRAP
    r = a + u
    local tens = x % 16
    x = (x - tens) / 16 * 10 ^ tens
  elseif #raw == 28 then
    a, u, x, r = unpack_('>I7I7I7I7', raw)
  else
    return false, 'STATE of ' .. #raw .. ' bytes'
  end
  if a > MAX or u > MAX or x > MAX or r > MAX then
    return false, 'STATE of another schema'
  elseif algorithm > FIXED and u > 0 and x == 0 then
    return false, 'STATE of another algorithm'
  end
  return a, u, x, r
end

-- ttl is a counter's time to live: until its recovery, and a second more. Many
-- counters of a call recover together.
local px, px_for
local function ttl(r)
  if r ~= px_for then
    local micros = r - now
    px_for, px = r, format('%d', micros > 0 and micros / 1000 + 1001 or 1000)
  end
  return px
end

-- heal gives a time to live to a counter that has lost it.
local function heal(name, r)
  if call('PTTL', name) == -1 then
    call('PEXPIRE', name, ttl(r))
  end
end

-- write writes a counter. Short is how its limit says what x is, in two bytes, if
-- that is possible and it is a bucket of which a part comes back every microsecond.
local function write(name, algorithm, short, a, u, x, r)
  if r == 0 then
    call('DEL', name)
    return
  end
  -- Windows of whole seconds, and their counts, mostly fit into less; buckets that
  -- recover within an hour, too. What has 12 bytes takes 32 of Redis' memory, what
  -- has 28 takes 48.
  if algorithm >= BUCKET then
    if short > 0 and u < 4294967296 then
      call('PSETEX', name, px_for == r and px or ttl(r), pack('>I6I4I2', a % WRAP, u, short))
      return
    end
  elseif u < 65536 and a % SECOND == 0 then
    local length, y = (r - a) / SECOND, x
    if algorithm == FIXED then
      y = 0
    end
    if y < 65536 and length < 16777216 and length % 1 == 0 then
      call('PSETEX', name, px_for == r and px or ttl(r), pack('>I5I3I2I2', a / SECOND, length, u, y))
      return
    end
  end
  call('PSETEX', name, px_for == r and px or ttl(r), pack('>I7I7I7I7', a, u, x, r))
end

for g = 1, lone_count do
  local count, k, l, c
  count, k, l, c, pos = unpack_('>I2I2I2i8', blob, pos)
  l = limits[l]
  local algorithm, raw, name = l.algorithm, states[k], KEYS[k]
  local a, u, x, r, length, room
  if raw and #raw == 12 and algorithm <= FIXED then
    -- What decode would do: most counters are like this.
    a, length, u, x = unpack_('>I5I3I2I2', raw)
    a = a * SECOND
    r = a + length * SECOND
    if algorithm == FIXED then
      x = r
      if r - a == l.window and now >= a and now < r then
        room = l.cap - u -- and what judge would
      end
    end
  else
    a, u, x, r = decode(k, algorithm)
  end
  if not a then
    out[g + 1] = u
  elseif not room then
    if now >= r then
      a, u, x = 0, 0, 0
    end
    room, a, u, x = l.judge(a, u, x, now)
    if not room then
      out[g + 1] = format('EDGES %.0f', a)
    end
  end
  if room then
    if c > room then
      count = 0
    elseif c * count > room then
      count = whole(room, c)
    end
    out[g + 1] = count
    if c * count > 0 then
      write(name, algorithm, l.short, l.charge(a, u, x, c * count))
    elseif raw then
      heal(name, r)
    end
  end
end

if plain_count > 0 then
  local ks, ls, cs, as, us, xs, rs = {}, {}, {}, {}, {}, {}, {}
  for g = lone_count + 1, lone_count + plain_count do
    local count, n, problem
    count, n, pos = unpack_('>I2I2', blob, pos)
    for i = 1, n do
      local k, l, c
      k, l, c, pos = unpack_('>I2I2i8', blob, pos)
      l = limits[l]
      local a, u, x, r = decode(k, l.algorithm)
      if not a then
        problem = u
      else
        local room
        if now >= r then
          a, u, x = 0, 0, 0
        end
        room, a, u, x = l.judge(a, u, x, now)
        if not room then
          problem = format('EDGES %.0f', a)
        elseif c > room then
          count = 0
        elseif c * count > room then
          count = whole(room, c)
        end
        ks[i], ls[i], cs[i], as[i], us[i], xs[i], rs[i] = k, l, c, a, u, x, r
      end
    end
    out[g + 1] = problem or count
    for i = 1, problem and 0 or n do
      local k, l, units = ks[i], ls[i], cs[i] * count
      if units > 0 then
        write(KEYS[k], l.algorithm, l.short, l.charge(as[i], us[i], xs[i], units))
      elseif states[k] then
        heal(KEYS[k], rs[i])
      end
    end
  end
end

-- finish adds the states, and returns the answer.
local function finish()
  for k = 1, state_count do
    out[group_count + 1 + k] = states[k]
  end
  return out
end

if lone_count + plain_count == group_count then
  return finish()
end
