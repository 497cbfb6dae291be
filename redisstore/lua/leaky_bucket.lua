-- Leaky bucket: a token bucket whose capacity is one request plus the burst that may wait. The
-- caller computes how long a request is held from the state in the reply.

local leaky_judge, leaky_charge = bucket_judge, bucket_charge
