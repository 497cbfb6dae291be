-- What every algorithm needs. The files of this folder are put together, in the
-- order that the file order says, into one script; the algorithms bear the
-- names of the Go files that they follow.
--
-- Numbers are doubles that hold integers of at most 53 bits. No product or sum
-- here exceeds that: a limit for which one would is kept at a coarser tick. Times
-- are microseconds since the Unix epoch.
--
-- A call makes all of its functions and tables anew, and to make one costs as much as
-- several calls of it. So there are few that every call makes, and names of numbers, in
-- capitals, are gone from what Redis gets: script.go puts the numbers in their place.

local MAX = 9007199254740991
local SLIDING, FIXED, LOG, BUCKET, LEAKY = 0, 1, 2, 3, 4
local SECOND, LAST = 1000000, 7258118400000000 -- the year 2200
local WRAP, AHEAD = 281474976710656, 1099511627776 -- 9 years; 12 days, by which a clock may step back

local call, unpack_, pack, format = redis.call, struct.unpack, struct.pack, string.format

-- whole is how many times b fits into a. The quotient a/b may be rounded up to a whole
-- number, never down below one, so the remainder that % computes may be negative.
local function whole(a, b)
  local r = a % b
  if r < 0 then
    r = r + b
  end
  return (a - r) / b
end

-- ceil_div is a/b, rounded up.
local function ceil_div(a, b)
  local n = whole(a, b)
  if n * b < a then
    return n + 1
  end
  return n
end

-- clamp holds n between nothing and what fits.
local function clamp(n)
  if n < 0 then
    return 0
  elseif n > MAX then
    return MAX
  end
  return n
end

-- The call, in binary: encode in call.go writes it and says how.
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

-- An algorithm is two functions, of a counter (at, used, aux: see Counter in the Go package
-- stint) and a limit:
--
--   judge(at, used, aux, time, limit...) -> left, at, used, aux
--     brings the counter to that time; left is the largest cost that would pass,
--     negative if more is used than the limit allows
--   charge(at, used, aux, units, limit...) -> at, used, aux, recovery
--     adds units, or takes them back if negative; recovery is when nothing will
--     be used any more, 0 if nothing is
--
-- where a limit is tick, window, rate, unit, cap, most, edges. They are made if the call has
-- such a limit. sliding_log, whose state has no fixed size, is another thing.
