-- Token bucket: used parts of units, of which rate come back at each tick. Aux is how many
-- parts a unit had when the state was written.

local bucket_judge, bucket_charge
if kinds % 32 >= 8 then
  function bucket_judge(at, used, aux, time, tick, _, rate, unit, cap)
    if time < at then
      time = at
    end
    if aux ~= unit then
      if used > 0 then
        used = clamp(ceil_div(used, aux) * unit)
      end
      aux = unit
    end
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
    used = clamp(used + units * unit)
    if used == 0 then
      return 0, 0, 0, 0
    end
    return at, used, aux, clamp(at + ceil_div(used, rate) * tick)
  end
end
