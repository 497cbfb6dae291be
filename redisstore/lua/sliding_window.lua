-- Sliding window: two counts, of the current window and of the one before, of
-- which a part is carried, rounded up.

local function sliding_window()
  local function judge(l, at, used, aux, now)
    local window, tick = l.window, l.tick
    local t = now
    if at > t then
      t = at
    end
    local start = t
    if tick > 1 then
      start = ticks(l, t)
    end
    start = (start - mod(start, window)) * tick
    if at ~= start then
      if at > start then
        used, aux = clamp(used + aux), 0
      elseif at >= start - window * tick then
        used, aux = 0, used
      else
        used, aux = 0, 0
      end
      at = start
    end
    if aux == 0 then
      return l.cap - used, at, used, aux
    end
    local previous = aux
    if previous > l.most then
      previous = l.most
    end
    local carried = ceil_div(previous * (window - ticks(l, t - at)), window)
    return l.cap - used - carried, at, used, aux
  end

  -- A refund follows its take: it comes off the current window first.
  local function charge(l, at, used, aux, units)
    if units < -used then
      aux = clamp(aux + units + used)
    end
    used = clamp(used + units)
    local span = l.window * l.tick
    if used > 0 then
      return at, used, aux, at + 2 * span
    elseif aux > 0 then
      return at, used, aux, at + span
    end
    return 0, 0, 0, 0
  end

  return judge, charge
end
