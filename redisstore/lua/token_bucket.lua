-- Token bucket: parts of units that were used and come back, so many at each
-- tick. Aux is how many parts made a unit when the state was written.

local function token_bucket()
  local function parts_of(l, units)
    local parts = units * l.unit
    if parts > MAX then
      return MAX
    end
    return parts
  end

  local function judge(l, at, used, aux, now)
    local rate, unit, tick = l.rate, l.unit, l.tick
    if now < at then
      now = at
    end
    if aux ~= unit then
      if used > 0 then
        used = parts_of(l, ceil_div(used, aux))
      end
      aux = unit
    end
    local last, t = at, now
    if tick > 1 then
      last, t = ticks(l, at + tick - 1), ticks(l, now)
      if t < last then
        t = last
      end
    end
    -- A product that is rounded is above all that can be used.
    local gained = (t - last) * rate
    if gained < used then
      used = used - gained
    else
      used, t = 0, ticks(l, now + tick - 1)
    end
    return l.cap - ceil_div(used, unit), t * tick, used, aux
  end

  local function charge(l, at, used, aux, units)
    if units >= 0 then
      used = used + parts_of(l, units)
      if used > MAX then
        used = MAX
      end
    else
      used = used - parts_of(l, -units)
      if used <= 0 then
        return 0, 0, 0, 0
      end
    end
    local recovery = at + ceil_div(used, l.rate) * l.tick
    if recovery > MAX then
      recovery = MAX
    end
    return at, used, aux, recovery
  end

  return judge, charge
end
