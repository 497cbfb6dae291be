-- Leaky bucket: a token bucket whose capacity is the one slot that is free at
-- once and the burst that may wait. How long a request is held is worked out by
-- the caller, from the state that it gets back.

local leaky_judge, leaky_charge = bucket_judge, bucket_charge
