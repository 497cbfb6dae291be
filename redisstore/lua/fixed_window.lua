-- Fixed window: a count that restarts at each edge of the window.
--
-- The caller sends the edges of calendar windows, four for each time that it expects: the
-- starts of the previous window, of the one that contains the time, of the next one and of
-- the one after that. If the time is in none of these windows, left is nil and the next
-- result is the time for which edges are needed.

local fixed_judge, fixed_charge, fixed_edges
if kinds % 4 >= 2 then
  function fixed_judge(at, used, aux, time, _, window, _, _, cap, _, edges)
    if aux == at + window and time >= at and time < aux then
      return cap - used, at, used, aux
    end
    local t = time
    if at > t then
      t = at
    end
    local start, finish
    if not edges then
      start = whole(t, window) * window
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

  function fixed_charge(at, used, aux, units)
    used = clamp(used + units)
    if used == 0 then
      return 0, 0, 0, 0
    end
    return at, used, aux, aux
  end

  -- fixed_edges reads the edges at a position, and returns the position after them.
  function fixed_edges(from)
    local edges, n = {}, unpack_('>B', blob, from)
    from = from + 1
    for i = 1, n do
      edges[i], from = unpack_('>I7', blob, from)
    end
    return edges, from
  end
end
