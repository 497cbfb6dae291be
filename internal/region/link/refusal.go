package link

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reason is why a server has refused a stream, or ended it.
type Reason string

// The reasons. A node that is told one tries again, since the other side may be the one to change.
const (
	WrongSecret      Reason = "secret"      // or none
	WrongCertificate Reason = "certificate" // not of the region that it says
	UnknownRegion    Reason = "unknown_region"
	OwnRegion        Reason = "own_region"
	OtherNames       Reason = "other_names"   // it knows other regions
	OtherWeights     Reason = "other_weights" // or other weights
	OtherCentral     Reason = "other_central" // or another central one
	NewerVersion     Reason = "version"
	TooSlow          Reason = "timeout" // in the handshake
	TooMany          Reason = "too_many"
	BadMessage       Reason = "message"  // one that makes no sense
	NotReceived      Reason = "receiver" // the receiver has failed
)

// Reasons are all reasons.
var Reasons = []Reason{
	WrongSecret, WrongCertificate, UnknownRegion, OwnRegion, OtherNames, OtherWeights, OtherCentral, NewerVersion,
	TooSlow, TooMany, BadMessage, NotReceived,
}

// refusal is an error that the other side is told.
type refusal struct {
	reason Reason
	text   string
}

func refuse(reason Reason, format string, args ...any) error {
	return &refusal{reason, fmt.Sprintf(format, args...)}
}

func (r *refusal) Error() string { return string(r.reason) + ": " + r.text }

// GRPCStatus is what gRPC sends.
func (r *refusal) GRPCStatus() *status.Status {
	code := codes.FailedPrecondition
	switch r.reason {
	case WrongSecret:
		code = codes.Unauthenticated
	case WrongCertificate, UnknownRegion, OwnRegion:
		code = codes.PermissionDenied
	case TooSlow:
		code = codes.DeadlineExceeded
	case TooMany:
		code = codes.ResourceExhausted
	case BadMessage:
		code = codes.InvalidArgument
	case NotReceived:
		code = codes.Aborted
	case OtherNames, OtherWeights, OtherCentral, NewerVersion:
	}
	return status.New(code, r.Error())
}

// refused returns the refusal that an error is, or nil.
func refused(err error) *refusal {
	r := (*refusal)(nil)
	errors.As(err, &r)
	return r
}
