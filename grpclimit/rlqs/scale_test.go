//go:build scale

package rlqs_test

import "time"

func init() { fleetTime = 10 * time.Minute }
