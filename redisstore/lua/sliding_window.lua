-- Sliding window: two counts, of the current window and of the one before, of
-- which a part is carried, rounded up.

local function sliding_window(tick, window, cap, most)
  local span = window * tick

  local function judge(at, used, aux, now)
    local t = now
    if at > t then
      t = at
    end
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
      elseif at >= start - span then
        used, aux = 0, used
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

  -- A refund follows its take: it comes off the current window first.
  local function charge(at, used, aux, units)
    if units < -used then
      aux = clamp(aux + units + used)
    end
    used = clamp(used + units)
    if used > 0 then
      return at, used, aux, at + 2 * span
    elseif aux > 0 then
      return at, used, aux, at + span
    end
    return 0, 0, 0, 0
  end

  return judge, charge
end
