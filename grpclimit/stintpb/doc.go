// Package stintpb holds the messages and the client of the service stint.v1.Reservations, generated from stint.proto by
// make proto. Package grpclimit serves it, and so does stint serve, at server.grpc.
package stintpb
