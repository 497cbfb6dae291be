-- The entry point, and all that most calls need. A call has groups, which are decided
-- independently, one after another, at the same time:
--
--   lone    a take of one ask, whose counter is no log and is asked by no other group
--   plain   a take of several such asks, without a penalty
--   take    asks that are charged all or none
--   adjust  asks that are charged or given back unconditionally
--   undo    charges of a take that passed here and was denied elsewhere, to be given back
--   reset   counters to be forgotten
--   twins   a take that asks one counter more than once; with it there are only peeks
--
-- A take has a count: the number of equal takes, of which as many pass as fit. Lone and plain
-- takes come first and are decided here, the others in general.lua. Consecutive lone takes that
-- differ only in their counters are a run, and so are such asks of a plain take.
--
-- KEYS are the counters: first those of lone takes, then those of plain takes, in order; logs
-- and penalties last. A key is read once and written once, however many groups ask it.
--
-- The reply has: the time; how many groups did not pass completely; for each of these its number
-- and how many of its takes passed, or a text that says why it could not be decided (such a group
-- has changed nothing); the state of each counter as it was found, except logs; what each ask of a
-- log found. From this the caller computes the decisions, with the Go functions that this script
-- mirrors. In the usual case, that all groups passed and all states have 12 bytes, the reply is
-- one string, which is cheaper: the time and the states. The state of a counter that is not there
-- is 12 zeros, which is none of a counter.

local names = KEYS
local none = '\0\0\0\0\0\0\0\0\0\0\0\0' -- the state of a counter that is not there
local states = state_count > 0 and call('MGET', unpack(names, 1, state_count)) or {}
local simple, absent = true, nil
for k = 1, state_count do
  local raw = states[k]
  if not raw then
    absent = absent or {}
    absent[#absent + 1] = names[k]
    states[k] = none
  elseif #raw ~= 12 then
    simple = false
  end
end
-- MGET finds nothing either where a key is no string.
if absent and call('EXISTS', unpack(absent)) > 0 then
  simple = false
  for k = 1, state_count do
    if states[k] == none and call('EXISTS', names[k]) == 1 then
      states[k] = 'WRONGTYPE'
    end
  end
end

local decode
if not simple or kinds >= 8 or plain_count > 0 or limit_count > 0 then
  -- decode returns the numbers of a counter, or false and what is wrong with it.
  function decode(k, algorithm)
    local raw = states[k]
    local a, u, x, r
    if raw == none then
      return 0, 0, 0, 0
    elseif #raw == 12 and algorithm <= FIXED then
      a, r, u, x = unpack_('>I5I3I2I2', raw)
      a = a * SECOND
      r = a + r * SECOND
      if algorithm == FIXED then
        x = r
      end
    elseif #raw == 12 then
      a, u, x = unpack_('>I6I4I2', raw)
      -- The low 48 bits of a time are enough, since it is close to now.
      a = now + AHEAD - (now + AHEAD - a) % WRAP
      r = a + u
      local tens = x % 16
      x = (x - tens) / 16 * 10 ^ tens
    elseif #raw == 28 then
      a, u, x, r = unpack_('>I7I7I7I7', raw)
    elseif raw == 'WRONGTYPE' then
      return false, raw
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
end

-- ttl returns a counter's time to live: one second longer than its recovery. Many counters of a
-- call recover at the same time, so the last result is kept.
local px, px_for
local function ttl(r)
  if r ~= px_for then
    local micros = r - now
    px_for, px = r, format('%d', micros > 0 and micros / 1000 + SPARE or SPARE)
  end
  return px
end

-- heal sets the time to live of a counter that has lost it. Only people take it away, so one call in
-- 16 looks: with many counters in a call, that saves a fourth of Redis' time.
local function heal(k, r)
  if now % 16 == 0 and call('PTTL', names[k]) == -1 then
    call('PEXPIRE', names[k], ttl(r))
  end
end

-- write writes the k-th counter, where a0, x0 and r0 were found. short encodes x in two bytes for a
-- bucket that gets back one part every microsecond; 0 if that is not possible.
local function write(k, algorithm, short, a0, x0, r0, a, u, x, r)
  local name = names[k]
  if r == 0 then
    call('DEL', name)
    return
  end
  -- Most windows of whole seconds fit into 12 bytes, and so do buckets that recover within an
  -- hour. Redis uses 32 bytes of memory for a value of 12 bytes, and 48 for one of 28.
  if algorithm >= BUCKET then
    if short > 0 and u < 4294967296 then
      call('PSETEX', name, px_for == r and px or ttl(r), pack('>I6I4I2', a % WRAP, u, short))
      return
    end
  elseif u < 65536 and a % SECOND == 0 then
    if r == r0 and a == a0 and x == x0 and #states[k] == 12 then
      -- Within a window only the count changes. Writing it and checking the time to live is
      -- cheaper than setting both.
      call('SETRANGE', name, '8', pack('>I2', u))
      heal(k, r)
      return
    end
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

-- counted returns how many units were used of a fixed window that now is in, if as many more would fit into the
-- 12 bytes of its state. A take of such a counter changes nothing but this number, which recount writes: so are
-- most counters of Envoy's, and a call of 16 of them takes three quarters of the time.
local function counted(raw, more)
  if #raw == 12 then
    local a, length, u = unpack_('>I5I3I2', raw)
    return a * SECOND <= now and now < (a + length) * SECOND and u + more < 65536 and u
  end
end

local function recount(k, used, units)
  if units > 0 then
    call('SETRANGE', names[k], '8', pack('>I2', used + units))
  end
  if now % 16 == 0 then -- see heal
    local a, length = unpack_('>I5I3', states[k])
    heal(k, (a + length) * SECOND)
  end
end

local lone_count, denied_count, out = 0, 0, nil
for _ = 1, run_count do
  local n, count, c, algorithm, tick, window, rate, unit, cap, most, edges
  n, count, c, algorithm, tick, window, rate, unit, cap, most, pos = unpack_('>I2I2i8BI3I7I7I7I7I7', blob, pos)
  local judge, charge = sliding_judge, sliding_charge
  if algorithm == FIXED then
    judge, charge = fixed_judge, fixed_charge
    if window == 0 then
      edges, pos = fixed_edges(pos)
    end
  elseif algorithm == BUCKET then
    judge, charge = bucket_judge, bucket_charge
  elseif algorithm == LEAKY then
    judge, charge = leaky_judge, leaky_charge
  end
  for k = lone_count + 1, lone_count + n do
    local raw, units, value = states[k], c * count, nil
    local before = algorithm == FIXED and c > 0 and counted(raw, units)
    if before and before + units <= cap then
      recount(k, before, units)
    else
      local a, u, x, r
      if #raw == 12 and algorithm <= FIXED then
        -- The same as decode, inlined for the most common case.
        a, r, u, x = unpack_('>I5I3I2I2', raw)
        a = a * SECOND
        r = a + r * SECOND
        if algorithm == FIXED then
          x = r
        end
      else
        a, u, x, r = decode(k, algorithm)
      end
      if not a then
        value = u
      else
        local ahead = false
        if now >= r then
          a, u, x = 0, 0, 0
        elseif a > now and (algorithm <= FIXED or a - now >= tick) then
          -- A clock ahead of this one wrote it: see moveBack in Go.
          if algorithm == FIXED then
            x = x - (a - now)
          end
          a, r, ahead = now, r - (a - now), true
        end
        local room, at, used, aux, moved = judge(a, u, x, now, tick, window, rate, unit, cap, most, edges, r)
        if not room then
          value = format('EDGES %.0f', at)
        else
          if units > room then
            value = 0
            if c <= room then
              value = whole(room, c)
            end
            units = c * value
          end
          if units > 0 or moved or ahead then
            write(k, algorithm, most, not ahead and a, x, r, charge(at, used, aux, units, tick, window, rate, unit))
          elseif raw ~= none then
            heal(k, r)
          end
        end
      end
    end
    if value then
      out = out or { now, 0 }
      denied_count = denied_count + 1
      out[2 * denied_count + 1], out[2 * denied_count + 2] = k, value
    end
  end
  lone_count = lone_count + n
end

-- The other groups need more functions.
local judges, charges, say
if lone_count < group_count then
  judges = { [SLIDING] = sliding_judge, [FIXED] = fixed_judge, [BUCKET] = bucket_judge, [LEAKY] = leaky_judge }
  charges = { [SLIDING] = sliding_charge, [FIXED] = fixed_charge, [BUCKET] = bucket_charge, [LEAKY] = leaky_charge }

  -- say reports a group that did not pass completely.
  function say(g, value)
    out = out or { now, 0 }
    denied_count = denied_count + 1
    out[2 * denied_count + 1], out[2 * denied_count + 2] = g, value
  end
end

local plain_keys = lone_count
for g = lone_count + 1, lone_count + plain_count do
  local count, runs_of, problem
  count, runs_of, pos = unpack_('>I2I2', blob, pos)
  local pass, runs, counts, judged, i, k = count, {}, {}, {}, 0, plain_keys
  for run = 1, runs_of do
    local n, c, algorithm, tick, window, rate, unit, cap, most, edges
    n, c, algorithm, tick, window, rate, unit, cap, most, pos = unpack_('>I2i8BI3I7I7I7I7I7', blob, pos)
    if algorithm == FIXED and window == 0 then
      edges, pos = fixed_edges(pos)
    end
    local judge = judges[algorithm]
    for _ = 1, n do
      k = k + 1
      local before = algorithm == FIXED and c > 0 and counted(states[k], c * count)
      local a, u, x, r
      if not before then
        a, u, x, r = decode(k, algorithm)
      end
      if before then
        counts[k] = before
        if c * pass > cap - before then
          pass = before < cap and whole(cap - before, c) or 0
        end
      elseif not a then
        problem = u
      else
        local ahead = false
        if now >= r then
          a, u, x = 0, 0, 0
        elseif a > now and (algorithm <= FIXED or a - now >= tick) then
          -- A clock ahead of this one wrote it: see moveBack in Go.
          if algorithm == FIXED then
            x = x - (a - now)
          end
          a, r, ahead = now, r - (a - now), true
        end
        local room, at, used, aux, moved = judge(a, u, x, now, tick, window, rate, unit, cap, most, edges, r)
        if not room then
          problem = format('EDGES %.0f', at)
        elseif c > room then
          pass = 0
        elseif c * pass > room then
          pass = whole(room, c)
        end
        judged[i + 1], judged[i + 2], judged[i + 3] = at, used, aux
        judged[i + 4], judged[i + 5], judged[i + 6], judged[i + 7] = not ahead and a, x, r, moved or ahead
        i = i + 7
      end
    end
    runs[run] = { n, c, algorithm, tick, window, rate, unit, most }
  end
  if problem or pass < count then
    say(g, problem or pass)
  end
  i = 0
  for run = 1, problem and 0 or runs_of do
    local n, c, algorithm, tick, window, rate, unit, most = unpack(runs[run])
    local charge, units = charges[algorithm], c * pass
    for key = plain_keys + 1, plain_keys + n do
      if counts[key] then
        recount(key, counts[key], units)
      else
        local r = judged[i + 6]
        if units > 0 or judged[i + 7] then
          write(key, algorithm, most, judged[i + 4], judged[i + 5], r,
            charge(judged[i + 1], judged[i + 2], judged[i + 3], units, tick, window, rate, unit))
        elseif states[key] ~= none then
          heal(key, r)
        end
        i = i + 7
      end
    end
    plain_keys = plain_keys + n
  end
  plain_keys = k
end

local done = lone_count + plain_count == group_count
if done and simple and not out then
  return pack('>I7', now) .. table.concat(states)
end

out = out or { now, 0 }

-- finish adds the states, and returns the reply.
local function finish()
  out[2] = denied_count
  local said = 2 + 2 * denied_count
  for k = 1, state_count do
    out[said + k] = states[k]
  end
  return out
end

if done then
  return finish()
end
