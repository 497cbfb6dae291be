package storetest_test

import (
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/storetest"
)

func TestSpec(t *testing.T) {
	t.Parallel()
	open := func(_ testing.TB, now func() time.Time) stint.Store { return storetest.Spec(now) }
	storetest.Run(t, open)
	t.Run("across subjects", func(t *testing.T) { storetest.AcrossSubjects(t, open) })
}
