-- Sliding window: the counts of the current window and of the previous one, of which a share
-- is carried over, rounded up.

local sliding_judge, sliding_charge
if kinds % 2 >= 1 then
  function sliding_judge(at, used, aux, time, tick, window, _, _, cap, most)
    local t = time
    if tick > 1 then
      t = whole(t, tick)
    end
    local into = t % window
    if into < 0 then
      into = into + window
    end
    local start = (t - into) * tick
    if at ~= start then
      if at > start then
        used, aux = clamp(used + aux), 0
      elseif at == start - window * tick then
        used, aux = 0, used
      elseif at > start - window * tick then
        used, aux = 0, clamp(used + aux)
      else
        used, aux = 0, 0
      end
      at = start
    end
    if aux == 0 then
      return cap - used, at, used, aux
    end
    local previous = aux
    if previous > most then
      previous = most
    end
    return cap - used - ceil_div(previous * (window - into), window), at, used, aux
  end

  -- A refund is subtracted from the current window first, where its take most likely was.
  function sliding_charge(at, used, aux, units, tick, window)
    if units < -used then
      aux = clamp(aux + units + used)
    end
    used = clamp(used + units)
    if used > 0 then
      return at, used, aux, at + 2 * window * tick
    elseif aux > 0 then
      return at, used, aux, at + window * tick
    end
    return 0, 0, 0, 0
  end
end
