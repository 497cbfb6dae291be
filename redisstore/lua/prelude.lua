-- What every algorithm needs. The files of this folder are joined into one script, in the
-- order that the file "order" lists. Each algorithm has the name of the Go file that it mirrors.
--
-- Numbers are doubles that hold integers of at most 53 bits. No product or sum here exceeds
-- that: limits for which it would use a coarser tick. Times are microseconds since the Unix
-- epoch.
--
-- Every call of the script creates its functions and tables again, and creating one costs as
-- much as calling it several times. So only a few are created unconditionally. script.go
-- replaces constants, whose names are in capitals, by their values.

local MAX = 9007199254740991
local SLIDING, FIXED, LOG, BUCKET, LEAKY, PLACES = 0, 1, 2, 3, 4, 5
local SECOND, LAST, ONCE = 1000000, 7258118400000000, 4200000000 -- the year 2200; 70 minutes
local SPARE = 1001 -- milliseconds that a counter lives longer than it takes to recover, and what rounding loses
local WRAP, AHEAD = 281474976710656, 8796093022208 -- 9 years; 100 days, the most that a clock may step back

local call, unpack_, pack, format = redis.call, struct.unpack, struct.pack, string.format

-- whole returns a/b, rounded down. Lua may round the quotient a/b up to the next integer, so
-- the remainder that % computes may be negative.
local function whole(a, b)
  local r = a % b
  if r < 0 then
    r = r + b
  end
  return (a - r) / b
end

-- ceil_div returns a/b, rounded up.
local function ceil_div(a, b)
  local n = whole(a, b)
  if n * b < a then
    return n + 1
  end
  return n
end

-- clamp limits n to the range from 0 to MAX.
local function clamp(n)
  if n < 0 then
    return 0
  elseif n > MAX then
    return MAX
  end
  return n
end

-- The binary arguments: see encode in call.go for the format.
local blob = ARGV[1]
local now, kinds, limit_count, state_count, run_count, plain_count, group_count, pos = unpack_('>I7BI2I2I2I2I2', blob)
if now == 0 then
  local t = call('TIME')
  now = t[1] * SECOND + t[2]
  if now > LAST then
    now = LAST
  end
else
  now = now - 1
end

-- An algorithm is two functions of a counter (at, used, aux: see Counter in the Go package
-- stint) and a limit:
--
--   judge(at, used, aux, time, limit..., recovery) -> left, at, used, aux, moved
--     advances the counter to that time; left is the largest cost that would pass,
--     negative if more is used than the limit allows; a counter that has moved must be
--     written even if nothing is charged
--   charge(at, used, aux, units, limit...) -> at, used, aux, recovery
--     adds units, or gives them back if negative; recovery is when the counter will be
--     empty, 0 if it is empty now
--
-- where a limit is tick, window, rate, unit, cap, most, edges. They are created only if the
-- call has such a limit. sliding_log and concurrency are different, since their states have no
-- fixed size.
