package llm_test

import (
	"testing"

	"github.com/stintdev/stint/internal/door/llm"
)

// counted are texts, and their tokens in the vocabularies o200k_base and cl100k_base.
var counted = map[string]struct{ newer, older int64 }{
	"The gateway counts what has passed, and asks the store before it lets the next request through. A client that waits as long as it was told is not refused again.":                                                   {34, 34},
	"Der Zähler wird nach jeder Anfrage erhöht. Wer zu viele Anfragen sendet, muss warten, bis das Fenster abgelaufen ist.":                                                                                              {28, 36},
	"func (l *Limiter) Take(ctx context.Context, key string, cost int64) (Decision, error) {\n\tif cost < 0 {\n\t\treturn Decision{}, fmt.Errorf(\"cost is %d\", cost)\n\t}\n\treturn l.store.Take(ctx, key, cost)\n}\n": {57, 58},
	`{"id":"req_81723","user":{"name":"Ada","tier":"gold"},"limits":[{"max":100,"window":"1m"},{"max":5000,"window":"24h"}],"cost":12.75,"ok":true}`:                                                                     {52, 50},
	"网关统计已经通过的请求,并在放行下一个请求之前询问存储。等待足够长时间的客户端不会再次被拒绝。":                                                                                                                                                                    {34, 48},
	"ゲートウェイは通過したリクエストを数え、次のリクエストを通す前にストアに問い合わせます。":                                                                                                                                                                       {33, 40},
	"Шлюз считает всё, что прошло, и спрашивает хранилище, прежде чем пропустить следующий запрос.":                                                                                                                      {24, 42},
	"게이트웨이는 통과한 요청을 세고 다음 요청을 보내기 전에 저장소에 묻습니다.":                                                                                                                                                                         {24, 37},
	"2026-11-17T23:59:58Z 10.0.0.17 GET /v1/items?page=3&size=50 200 1532 0.0213":                                                                                                                                        {43, 43},
	"🎉🚀 done 👍": {6, 9},
}

// TestEstimate checks that estimates are not far below the smaller count, and not far above
// the larger one, however the text comes.
func TestEstimate(t *testing.T) {
	t.Parallel()
	for text, c := range counted {
		var whole, pieces llm.Estimate
		whole.Add([]byte(text))
		for i := range len(text) {
			pieces.Add([]byte{text[i]})
		}
		got := whole.Tokens()
		if low, high := min(c.newer, c.older)*8/10, max(c.newer, c.older)*13/10; got < low || got > high {
			t.Errorf("%q: estimated %d, counted %d and %d", text, got, c.newer, c.older)
		}
		if pieces.Tokens() != got {
			t.Errorf("%q: %d in single bytes, %d whole", text, pieces.Tokens(), got)
		}
	}
}

func BenchmarkEstimate(b *testing.B) {
	var text []byte
	for t := range counted {
		text = append(text, t...)
	}
	b.SetBytes(int64(len(text)))
	var e llm.Estimate
	for b.Loop() {
		e.Add(text)
	}
}
