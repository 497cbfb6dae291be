-- Fixed window: a count that starts anew at each edge of the window.
--
-- The edges of a calendar window are the caller's, four for each time that it
-- thinks of: the starts of the window before, of the one that holds the time, of
-- the next and of the one after that. If the time is in none of these windows,
-- left is nil and the next result is the time for which edges are wanted.

local function fixed_window(window, cap, edges)
  local function judge(at, used, aux, now)
    if aux == at + window and now >= at and now < aux then
      return cap - used, at, used, aux
    end
    local t = now
    if at > t then
      t = at
    end
    local start, finish
    if not edges then
      start = t - mod(t, window)
      finish = start + window
    else
      for i = 1, #edges - 1 do
        if i % 4 > 0 and edges[i] <= t and t < edges[i + 1] then
          start, finish = edges[i], edges[i + 1]
        end
      end
      if not start then
        return nil, t
      end
    end
    if at < start then
      used = 0
    end
    return cap - used, start, used, finish
  end

  local function charge(at, used, aux, units)
    used = clamp(used + units)
    if used == 0 then
      return 0, 0, 0, 0
    end
    return at, used, aux, aux
  end

  return judge, charge
end
