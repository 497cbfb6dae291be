"""The objects of the decision API. Generated from httplimit/openapi.json by clients/generate.py. Do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Mapping, Optional, Sequence, Union


@dataclass(frozen=True)
class Check:
    """A request. If none of user, tenant, api_key and tier is given, the headers and ip say who is asking, as in a real request."""

    #: Begins with a slash. A query is ignored.
    path: str
    #: In upper case.
    method: Optional[str] = None
    #: The client's address, or the address of a trusted proxy whose headers give the client's.
    ip: Optional[str] = None
    user: Optional[str] = None
    tenant: Optional[str] = None
    #: The id of the key, without its secret.
    api_key: Optional[str] = None
    tier: Optional[str] = None
    headers: Optional[Mapping[str, Union[str, Sequence[str]]]] = None
    #: In place of what rules say.
    cost: Optional[int] = None
    #: Return what would be decided, and count nothing.
    peek: Optional[bool] = None


@dataclass(frozen=True)
class Verdict:
    """Verdict in the OpenAPI document."""

    allowed: bool
    outcome: Literal["allowed", "throttled", "exempt", "denied", "banned", "blocked", "unauthorized", "unavailable"]
    #: Seconds until the request could pass: 0 if it may pass now, null if waiting does not help.
    retry_after: Optional[float]
    decision_id: str
    #: All limits that applied, the binding one first, and those that deny nothing last.
    limits: Sequence[Limit]
    #: The rule that decided, if there is one.
    rule: Optional[str] = None
    #: The capacity of the binding limit, which is the first of limits. This and the next two are missing if no limit
    #: was counted.
    limit: Optional[int] = None
    #: What remains of the binding limit.
    remaining: Optional[int] = None
    #: Seconds until the whole limit is available again.
    reset_after: Optional[float] = None
    #: The HTTP status for the client, if the request is denied.
    status: Optional[int] = None
    #: The reason for the client to read, if the request is denied.
    reason: Optional[str] = None
    #: Which limits of mark rules a request that may pass is over, and by how much, as a list of structured fields:
    #: for the header Stint-Over of the request that is passed on.
    over: Optional[str] = None
    #: Why the token of a request that may pass was not accepted, if on_bad_token is anonymous: do not use it.
    unaccepted: Optional[str] = None


@dataclass(frozen=True)
class Limit:
    """Limit in the OpenAPI document."""

    rule: str
    name: str
    #: The limit, as in rules.
    limit: str
    cost: int
    allowed: bool
    #: Seconds until this cost could pass: 0 if it may pass now, null if it never can.
    retry_after: Optional[float]
    #: The limit denies nothing: that of a log_only or mark rule, for example.
    shadow: bool
    #: The path of the rule that matched, if the rule has paths.
    endpoint: Optional[str] = None
    #: The most that can remain. This and the next two are missing if it could not be counted.
    max: Optional[int] = None
    remaining: Optional[int] = None
    #: Seconds until the whole limit is available again.
    reset_after: Optional[float] = None
    #: Where the decision comes from, if not from the store's count.
    basis: Optional[Literal["leased", "remembered", "local", "open", "closed"]] = None
    #: This is the rule's penalty: remaining is the number of violations until a ban.
    penalty: Optional[bool] = None


@dataclass(frozen=True)
class Ask:
    """Ask in the OpenAPI document."""

    #: Who is counted. 1 to 4096 bytes.
    subject: str
    #: Such as 100/1m.
    limit: str
    #: What is counted.
    name: Optional[str] = None
    #: 0 takes nothing, and shows the state.
    cost: Optional[int] = None


@dataclass(frozen=True)
class TakenLimit:
    """TakenLimit in the OpenAPI document."""

    subject: str
    name: str
    limit: str
    cost: int
    allowed: bool
    #: Seconds until this cost could pass, or null if it never can.
    retry_after: Optional[float]
    max: Optional[int] = None
    remaining: Optional[int] = None
    #: Seconds until the whole limit is available again.
    reset_after: Optional[float] = None
    basis: Optional[Literal["leased", "remembered", "local", "open", "closed"]] = None


@dataclass(frozen=True)
class Taken:
    """Taken in the OpenAPI document."""

    #: Whether all were charged. Otherwise none was.
    allowed: bool
    #: Seconds until all could pass, if there are no other calls; null if they never can.
    retry_after: Optional[float]
    #: Seconds to hold a request that is allowed, so that requests are evenly spaced. Only for leaky_bucket;
    #: otherwise 0.
    delay: float
    limits: Sequence[TakenLimit]


@dataclass(frozen=True)
class Reserve:
    """A request, as in Check."""

    #: Begins with a slash. A query is ignored.
    path: str
    #: In upper case.
    method: Optional[str] = None
    #: The client's address, or the address of a trusted proxy whose headers give the client's.
    ip: Optional[str] = None
    user: Optional[str] = None
    tenant: Optional[str] = None
    #: The id of the key, without its secret.
    api_key: Optional[str] = None
    tier: Optional[str] = None
    headers: Optional[Mapping[str, Union[str, Sequence[str]]]] = None
    #: How many units to reserve, in place of what rules say. If rules that apply have a meter, it is for their
    #: limits, and the others cost what they say.
    cost: Optional[int] = None
    #: How many units to reserve. Meters that are not here cost what their rules say. By meter: request_bytes,
    #: response_bytes, response_seconds, header:NAME, json:PATH, llm.input_tokens, llm.output_tokens,
    #: llm.total_tokens or llm.cost. Either this or cost, not both.
    usage: Optional[Mapping[str, int]] = None
    #: How many seconds the ticket is valid.
    expires_in: Optional[int] = None


@dataclass(frozen=True)
class Commit:
    """What was used: either cost or usage is required."""

    #: The ticket of a reservation, as it was given: an opaque text.
    ticket: str
    #: How many units were used of the limits of rules with a meter or, if none of them has one, of all limits.
    cost: Optional[int] = None
    #: How many units were used. What is not here stays as it was reserved. By meter: request_bytes, response_bytes,
    #: response_seconds, header:NAME, json:PATH, llm.input_tokens, llm.output_tokens, llm.total_tokens or llm.cost.
    #: Either this or cost, not both.
    usage: Optional[Mapping[str, int]] = None
    #: The language model, or whatever else the usage is recorded by: at most 128 bytes without control characters.
    #: It changes no limit.
    model: Optional[str] = None


@dataclass(frozen=True)
class Cancel:
    """Cancel in the OpenAPI document."""

    #: The ticket of a reservation, as it was given: an opaque text.
    ticket: str


@dataclass(frozen=True)
class Extend:
    """Extend in the OpenAPI document."""

    #: The ticket of a reservation, as it was given: an opaque text.
    ticket: str
    #: How many more units to reserve. 0 or none reserves no more.
    cost: Optional[int] = None
    #: How many more units to reserve. By meter: request_bytes, response_bytes, response_seconds, header:NAME,
    #: json:PATH, llm.input_tokens, llm.output_tokens, llm.total_tokens or llm.cost. Either this or cost, not both.
    usage: Optional[Mapping[str, int]] = None
    #: How many seconds the ticket is valid.
    expires_in: Optional[int] = None


@dataclass(frozen=True)
class Reserved:
    """A verdict, and the ticket of a request that may pass. There is none if nothing was counted: then there is nothing to settle."""

    allowed: bool
    outcome: Literal["allowed", "throttled", "exempt", "denied", "banned", "blocked", "unauthorized", "unavailable"]
    #: Seconds until the request could pass: 0 if it may pass now, null if waiting does not help.
    retry_after: Optional[float]
    decision_id: str
    #: All limits that applied, the binding one first, and those that deny nothing last.
    limits: Sequence[Limit]
    #: The rule that decided, if there is one.
    rule: Optional[str] = None
    #: The capacity of the binding limit, which is the first of limits. This and the next two are missing if no limit
    #: was counted.
    limit: Optional[int] = None
    #: What remains of the binding limit.
    remaining: Optional[int] = None
    #: Seconds until the whole limit is available again.
    reset_after: Optional[float] = None
    #: The HTTP status for the client, if the request is denied.
    status: Optional[int] = None
    #: The reason for the client to read, if the request is denied.
    reason: Optional[str] = None
    #: Which limits of mark rules a request that may pass is over, and by how much, as a list of structured fields:
    #: for the header Stint-Over of the request that is passed on.
    over: Optional[str] = None
    #: Why the token of a request that may pass was not accepted, if on_bad_token is anonymous: do not use it.
    unaccepted: Optional[str] = None
    #: The ticket of a reservation, as it was given: an opaque text.
    ticket: Optional[str] = None
    #: How many seconds the ticket is valid.
    expires_in: Optional[int] = None


@dataclass(frozen=True)
class Settled:
    """Settled in the OpenAPI document."""

    rule: str
    name: str
    #: The limit, as it was when it was reserved.
    limit: str
    #: How many units are or were reserved.
    reserved: int
    #: The limit denies nothing: that of a log_only or mark rule, for example.
    shadow: bool
    #: The meter of the rule, if it has one.
    meter: Optional[str] = None
    #: How many units are charged now. Those above reserved are the overshoot. It is missing in an extension, and if
    #: the reservation had been settled before.
    used: Optional[int] = None
    #: The most that can remain. This and the next two are missing if it could not be counted.
    max: Optional[int] = None
    remaining: Optional[int] = None
    #: Seconds until the whole limit is available again.
    reset_after: Optional[float] = None


@dataclass(frozen=True)
class Receipt:
    """Receipt in the OpenAPI document."""

    #: Of the verdict on the request.
    decision_id: str
    #: It had been settled before, and nothing was changed now.
    repeated: bool
    limits: Sequence[Settled]


@dataclass(frozen=True)
class Extension:
    """Extension in the OpenAPI document."""

    #: Whether more was reserved: of all limits, or of none.
    allowed: bool
    #: Seconds until it could be reserved: 0 if it was, null if waiting does not help.
    retry_after: Optional[float]
    #: The ticket to use from now on, in place of the one before.
    ticket: str
    #: How many seconds it is valid.
    expires_in: int
    #: The limits of which more was asked.
    limits: Sequence[Settled]


@dataclass(frozen=True)
class Problem:
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: Optional[str] = None
    violated_policies: Optional[Sequence[str]] = field(default=None, metadata={"json": "violated-policies"})
    #: Seconds to wait, or null if waiting does not help.
    retry_after: Optional[float] = None
    decision_id: Optional[str] = None
