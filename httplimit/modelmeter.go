package httplimit

import (
	"sync/atomic"

	"github.com/stintdev/stint/internal/door/llm"
)

// ModelMeter counts what answers of language models have used, for metrics. Its zero value is empty, and several gateways may
// share it. It is safe for concurrent use.
type ModelMeter struct {
	answers, estimated, failed, cut                atomic.Uint64
	input, cached, cacheWritten, output, reasoning atomic.Uint64
}

// ModelCounts are what a [ModelMeter] has counted.
type ModelCounts struct {
	// Answers is how many there were. Of them, Estimated had a usage that was not reported, or not in full, Failed were errors,
	// and Cut were cut because they used too much.
	Answers, Estimated, Failed, Cut uint64
	// Tokens. Cached and CacheWritten are parts of Input, and Reasoning is one of Output.
	Input, Cached, CacheWritten, Output, Reasoning uint64
}

// Counts returns what was counted.
func (m *ModelMeter) Counts() ModelCounts {
	return ModelCounts{
		Answers: m.answers.Load(), Estimated: m.estimated.Load(), Failed: m.failed.Load(), Cut: m.cut.Load(),
		Input: m.input.Load(), Cached: m.cached.Load(), CacheWritten: m.cacheWritten.Load(),
		Output: m.output.Load(), Reasoning: m.reasoning.Load(),
	}
}

// add counts an answer.
func (m *ModelMeter) add(u *llm.Usage, failed, cut bool) {
	m.answers.Add(1)
	if u.Estimated {
		m.estimated.Add(1)
	}
	if failed {
		m.failed.Add(1)
	}
	if cut {
		m.cut.Add(1)
	}
	m.input.Add(uint64(u.Input))
	m.cached.Add(uint64(u.Cached))
	m.cacheWritten.Add(uint64(u.CacheWritten))
	m.output.Add(uint64(u.Output))
	m.reasoning.Add(uint64(u.Reasoning))
}
