-- A single change of a charge to a window: nearly every settlement of a reservation. It is decided here, since creating
-- the functions of other calls takes longer than the change: a reservation and its settlement take as long as 2.1
-- to 2.6 takes, and without this 3.1. All that is unusual is left to them: changes that were made before, counters that
-- were reset or have no state, clocks that were ahead, calendar windows.

if (kinds == 129 or kinds == 130) and group_count == 1 and limit_count == 1 then
  local function settle()
    local algorithm, tick, window, rate, unit, cap, most, kind, count, n, k, _, by
    algorithm, tick, window, rate, unit, cap, most, pos = unpack_('>BI3I7I7I7I7I7', blob, pos)
    kind, count, n, k, _, by, pos = unpack_('>BI2I2I2I2i8', blob, pos)
    if kind ~= 1 or count ~= 1 or n ~= 1 or window == 0 then
      return
    end
    local at, cost, last, reset, once, keep, sum = unpack_('>I7I7I7I2I2I7I7', blob, pos)
    if cost == 0 or reset == 0 or once == 0 or at > now then
      return
    end
    local values = call('MGET', unpack(KEYS)) -- the counter, the mark of a reset, and that of this change
    local name, raw = KEYS[k], values[k]
    if not raw or values[reset] or values[once] then
      return
    end
    local a, u, x, r
    if #raw == 12 then -- as decode in main.lua
      a, r, u, x = unpack_('>I5I3I2I2', raw)
      a = a * SECOND
      r = a + r * SECOND
      if algorithm == FIXED then
        x = r
      end
    elseif #raw == 28 then
      a, u, x, r = unpack_('>I7I7I7I7', raw)
    else
      return
    end
    if a > now or now >= r or u > MAX or x > MAX or r > MAX then
      return
    end

    local charge, a0, x0, r0 = sliding_charge, a, x, r
    if algorithm == FIXED then
      charge = fixed_charge
      _, a, u, x = fixed_judge(a, u, x, now, tick, window, rate, unit, cap)
      if a <= at and at < x then
        u = clamp(u + by)
      end
    else
      _, a, u, x = sliding_judge(a, u, x, now, tick, window, rate, unit, cap, most)
      local span = window * tick
      if at >= a and at < a + span then
        u = clamp(u + by)
      elseif at >= a - span and at < a then
        x = clamp(x + by)
      end
    end
    a, u, x, r = charge(a, u, x, 0, tick, window)

    if keep > 0 then
      last = now + keep
    elseif last < now + ONCE then
      last = now + ONCE
    end
    call('PSETEX', KEYS[once], format('%d', (last - now) / 1000 + SPARE), pack('>I7I7I7', now, last, sum))
    local y, length = algorithm == FIXED and 0 or x, (r - a) / SECOND
    if r == 0 then
      call('DEL', name)
    elseif a == a0 and x == x0 and r == r0 and (#raw == 28 or u < 65536) then -- only the count has changed
      call('SETRANGE', name, #raw == 28 and '7' or '8', pack(#raw == 28 and '>I7' or '>I2', u))
    elseif u < 65536 and y < 65536 and a % SECOND == 0 and length % 1 == 0 and length < 16777216 then
      -- as write in main.lua
      call('PSETEX', name, format('%d', (r - now) / 1000 + SPARE), pack('>I5I3I2I2', a / SECOND, length, u, y))
    else
      call('PSETEX', name, format('%d', (r - now) / 1000 + SPARE), pack('>I7I7I7I7', a, u, x, r))
    end
    return { now, 0, raw, '1' }
  end

  local start = pos
  local reply = settle()
  if reply then
    return reply
  end
  pos = start
end
