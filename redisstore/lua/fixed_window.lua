-- Fixed window: a count that restarts at each edge of the window.
--
-- The caller sends the edges of calendar windows, four for each time that it expects: the
-- starts of the previous window, of the one that contains the time, of the next one and of
-- the one after that. If the time is in none of these windows, left is nil and the next
-- result is the time for which edges are needed.

local fixed_judge, fixed_charge, fixed_edges
if kinds % 4 >= 2 then
  function fixed_judge(at, used, aux, time, _, window, _, _, cap, _, edges)
    if at <= time and time < aux then
      return cap - used, at, used, aux
    end
    if not edges then
      local start = whole(time, window) * window
      return cap, start, 0, start + window
    end
    for i = 1, #edges - 1 do
      if i % 4 > 0 and edges[i] <= time and time < edges[i + 1] then
        return cap, edges[i], 0, edges[i + 1]
      end
    end
    return nil, time
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
