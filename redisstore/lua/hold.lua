-- A single hold, release or renewal: nearly every call that has a limit of concurrency. It is decided
-- here, since creating the functions of other calls takes longer than the decision: a hold and its
-- release take as long as 1.9 to 2.4 takes, and without this 3.3 to 3.6. All that is
-- unusual is left to them: denials, holds that have ended, clocks that were ahead, changes with an ID.

if kinds % 128 == 32 and group_count == 1 and limit_count == 1 then
  local function hold()
    local _, window, cap, kind, count, n, cost, at, units, once
    _, _, window, _, _, cap, _, pos = unpack_('>BI3I7I7I7I7I7', blob, pos)
    kind, count, n, _, _, cost, pos = unpack_('>BI2I2I2I2i8', blob, pos)
    if kind > 1 or count ~= 1 or n ~= 1 then
      return
    end
    local name = KEYS[1]
    local values = call('MGET', unpack(KEYS)) -- the counter, and the mark of a reset
    local raw = values[1] or ''
    if values[2] or #raw == 14 or #raw % 14 > 0 or raw == '' and call('EXISTS', name) == 1 then
      return
    end
    local size, ends, used, first, newest = #raw, 0, 0, now, 0
    if size > 0 then
      ends, used, first = unpack_('>I7I7I7', raw)
      newest = unpack_('>I7', raw, size - 13)
    end
    if used > cap or newest > ends or newest > now + 10000 or first <= now - window or ends > MAX then
      return
    end
    local fresh = newest < now and now or newest + 1 -- no two holds have the same instant

    if kind == 0 then -- a take
      if cost < 1 or used + cost > cap then
        return
      end
      call('PSETEX', name, format('%d', (fresh + window - now) / 1000 + SPARE), -- as ttl in main.lua
        pack('>I7I7', fresh + window, used + cost) .. string.sub(raw, 15) .. pack('>I7I7', fresh, cost))
      return { now, 0, pack('>I7I7I7I7', newest, used, ends, 0) }
    end

    at, units, _, _, once = unpack_('>I7I7I7I2I2I7', blob, pos)
    if units == 0 or cost > 0 or once > 0 or at > newest then
      return
    end
    local low, high = 1, size / 14 - 1
    while low < high do
      local middle = low + high
      middle = (middle - middle % 2) / 2
      if unpack_('>I7', raw, middle * 14 + 1) < at then
        low = middle + 1
      else
        high = middle
      end
    end
    local found, held = unpack_('>I7I7', raw, low * 14 + 1)
    if found ~= at or cost ~= 0 and cost ~= -held then
      return
    end
    local added = ''
    if cost == 0 then
      newest, added = fresh, pack('>I7I7', fresh, held)
    elseif size == 28 then
      call('DEL', name)
      return { now, 0, format('%.0f', held), pack('>I7I7I7I7', 0, 0, 0, 0) }
    elseif at == newest then
      newest = unpack_('>I7', raw, size - 27)
    end
    used, ends = used + cost, newest + window
    call('PSETEX', name, format('%d', (ends - now) / 1000 + SPARE),
      pack('>I7I7', ends, used) .. string.sub(raw, 15, low * 14) .. string.sub(raw, low * 14 + 15) .. added)
    return { now, 0, format('%.0f', held), pack('>I7I7I7I7', newest, used, ends, 0) }
  end

  local start = pos
  local reply = hold()
  if reply then
    return reply
  end
  pos = start
end
