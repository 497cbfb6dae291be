package grpclimit

import (
	"net/http"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/door/field"
)

// domain is the domain of the reasons in ErrorInfo.
const domain = "github.com/stintdev/stint"

// codeOf returns the gRPC code for a verdict.
func codeOf(v *engine.Verdict) codes.Code {
	switch {
	case v.Outcome == engine.Unauthorized && v.Status != http.StatusTooManyRequests:
		return codes.Unauthenticated
	case v.Outcome == engine.Unavailable:
		return codes.Unavailable
	case v.Outcome == engine.Denied, v.Status == http.StatusTooManyRequests:
		return codes.ResourceExhausted
	default: // banned, blocked
		return codes.PermissionDenied
	}
}

// denial returns the status of a call that was denied: why, when to try again, which limits
// deny it, and the decision's id.
func denial(v *engine.Verdict) error {
	s := status.New(codeOf(v), valid(message(v)))
	details := make([]protoadapt.MessageV1, 0, 3)
	details = append(details, &errdetails.ErrorInfo{
		Reason: strings.ToUpper(v.Outcome.String()), Domain: domain, Metadata: map[string]string{"decision_id": v.ID.String()},
	})
	if wait, ok := field.RetryAfter(v); ok {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	}
	quota := new(errdetails.QuotaFailure)
	for l, at := field.Next(v, 0); l != nil; l, at = field.Next(v, at) {
		if field.Violated(v, l) {
			rule, slash, name := field.PolicyName(v, l)
			quota.Violations = append(quota.Violations, &errdetails.QuotaFailure_Violation{
				Subject: valid(rule + slash + name), Description: valid("limit " + name + " (" + l.Limit.String() + ")"),
			})
		}
	}
	if quota.Violations != nil {
		details = append(details, quota)
	}
	if full, err := s.WithDetails(details...); err == nil {
		s = full
	}
	return s.Err()
}

// message says why the call was denied: the verdict's reason, or else the kind of denial.
// The details say the rest.
func message(v *engine.Verdict) string {
	if v.Reason != "" {
		return strings.TrimPrefix(v.Reason, "identity: ") // the package does not matter to a client
	}
	switch {
	case v.Outcome == engine.Denied && v.RetryAfter == stint.Never:
		return "This call costs more than a limit ever allows."
	case v.Outcome == engine.Denied:
		return "A limit is used up."
	case v.Outcome == engine.Banned:
		return "Calls from this client are denied."
	case v.Outcome == engine.Unavailable:
		return "Calls cannot be counted at the moment."
	default:
		return "This call is denied."
	}
}

// valid replaces invalid UTF-8, which protobuf does not accept.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
