-- Token bucket: used parts of units, of which rate come back at each tick. Aux is how many
-- parts a unit had when the state was written.

local bucket_judge, bucket_charge
if kinds % 32 >= 8 then
  function bucket_judge(at, used, aux, time, tick, _, rate, unit, cap, _, _, recovery)
    if time < at then
      time = at
    end
    if used > 0 then
      local empty = at + (rate == 1 and used or ceil_div(used, rate)) * tick
      if empty > MAX then
        empty = MAX
      end
      if aux ~= unit or empty ~= recovery then
        -- It was written at another rate: see changeRate in Go.
        used = used / aux * unit * (recovery - time) / (recovery - at) * (1 - 2 ^ -50)
        used = used < MAX and math.ceil(used) or MAX
        return cap - ceil_div(used, unit), whole(time + tick - 1, tick) * tick, used, unit, true
      end
    end
    aux = unit
    local last, t = at, time
    if tick > 1 then
      last, t = whole(at + tick - 1, tick), whole(time, tick)
      if t < last then
        t = last
      end
    end
    -- If the product is too large to be exact, it is larger than used can be.
    local gained = (t - last) * rate
    if gained < used then
      used = used - gained
      return cap - ceil_div(used, unit), t * tick, used, aux
    elseif tick > 1 then
      t = whole(time + tick - 1, tick)
    end
    return cap, t * tick, 0, aux
  end

  function bucket_charge(at, used, aux, units, tick, _, rate, unit)
    if units > 0 and used < rate and now > at then
      at = at + tick -- see bucketCharge in Go
    end
    used = clamp(used + units * unit)
    if used == 0 then
      return 0, 0, 0, 0
    end
    return at, used, aux, clamp(at + ceil_div(used, rate) * tick)
  end
end
