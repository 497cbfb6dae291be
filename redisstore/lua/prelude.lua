-- What every algorithm needs. The files of this folder are put together, in the
-- order that the file order says, into one script; the algorithms bear the
-- names of the Go files that they follow.
--
-- Numbers are doubles that hold integers of at most 53 bits. No product or sum
-- here exceeds that: a limit for which one would is kept at a coarser tick. Times
-- are microseconds since the Unix epoch.

local call, pcall_, unpack_, pack, format = redis.call, redis.pcall, struct.unpack, struct.pack, string.format
local MAX = 9007199254740991

-- mod is a % b. The quotient a/b may be rounded up to a whole number, never
-- down below one, so the remainder that % computes may be negative.
local function mod(a, b)
  local r = a % b
  if r < 0 then
    return r + b
  end
  return r
end

-- ceil_div is a/b, rounded up.
local function ceil_div(a, b)
  local r = mod(a, b)
  if r > 0 then
    return (a - r) / b + 1
  end
  return a / b
end

-- whole is how many times b fits into a.
local function whole(a, b)
  return (a - mod(a, b)) / b
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

-- An algorithm is a function that takes a limit's numbers and returns two
-- functions over a counter (at, used, aux: see Counter in the Go package stint):
--
--   judge(at, used, aux, now) -> left, at, used, aux
--     brings the counter to now; left is the largest cost that would pass,
--     negative if more is used than the limit allows
--   charge(at, used, aux, units) -> at, used, aux, recovery
--     adds units, or takes them back if negative; recovery is when nothing will
--     be used any more, 0 if nothing is
--
-- A call pays for those that it needs only: to make a function costs as much as
-- to call it. sliding_log, whose state has no fixed size, is another thing.
