// Package llm reads what requests to language models may use, and what their answers have
// used: OpenAI's chat completions, responses and embeddings, Anthropic's messages, and what
// speaks like them, as JSON or as server-sent events.
//
// In the order of a request:
//
//   - [ReadRequest] finds what to reserve: an estimate of the prompt, and the largest cap for
//     each answer. [Request.AskUsage] adds the wish for usage to a stream that would not
//     report it, and [Filter] takes the report out again.
//   - [Response] reads what was used while the answer passes, and [Response.Cut] ends a
//     stream that uses too much.
//   - [Prices] turns that into money.
//   - [Shape.SetHeaders] and [Shape.Error] say it as the providers' clients expect it.
//
// It holds back and changes nothing itself: callers pass on the bytes. Only a Filter holds
// back an event, until it is clear that it is not the report.
//
// # Bounds
//
//   - A Response needs 2 KB, and 56 KB if the answer is compressed; a Filter 2 KB, and up to
//     [MaxHeld] more for an event that it holds back. A test measures this. Events and their
//     lines may be of any length, as they are not kept.
//   - ReadRequest reads what it is given, and needs 2 KB for that.
//   - What is found does not depend on how the bytes are cut into pieces.
//   - Numbers are from 0 to [scan.MaxNumber]; higher ones are clamped, and nothing overflows.
//
// # Never free
//
// Usage that is not reported is estimated, and marked: the input as the request's estimate,
// the output from the text that has passed since the last report, or from the bytes of an
// answer that cannot be read. An answer without any text has an output of 1.
//
// # Estimates
//
// Tokens are estimated from classes of bytes: words, with more for long ones, runs of
// punctuation, digits, and characters of two, three and four bytes in UTF-8. These are the
// differences from what OpenAI's vocabularies o200k_base and cl100k_base count, beside those
// of a quarter of the bytes, for texts of 18 to 370 KB:
//
//	text                        o200k  cl100k   bytes/4: o200k  cl100k
//	English, documents            -1%     -1%              -5%     -5%
//	English, licenses            +19%    +18%             +20%    +20%
//	Go                             0%     -1%             -17%    -17%
//	Python                        +3%     +4%              +8%     +9%
//	TypeScript                    -1%     -1%             -11%    -10%
//	JSON, indented                -5%     -5%             -18%    -18%
//	JSON, dense                  +13%    +15%             -13%    -12%
//	JSON, of numbers and ids      -1%     -1%             -48%    -48%
//	Chinese                      +23%    -13%              +5%    -26%
//	Chinese, messages             -9%    -29%             -21%    -39%
//	Japanese, messages            +8%    -18%              -9%    -31%
//	Korean, messages              +3%    -26%              -9%    -35%
//	German, messages             -15%    -25%             -22%    -31%
//	French, messages             -13%    -21%             -16%    -25%
//	Russian, messages            +48%     +3%             +40%     -2%
//	Greek, messages              +20%    -47%             +14%    -49%
//	Arabic, messages             +13%    -36%              +8%    -39%
//	Hindi, messages              +78%    -29%             +59%    -36%
//
// The messages are translations that programs on Debian have. A tokenizer library that has
// these vocabularies built in (tiktoken-go/tokenizer v0.10.0) would be exact for OpenAI's
// models and for no others. It took 0.3 to 4 seconds for a megabyte on a busy machine, where
// ReadRequest with this estimate took 6 to 18 ms, and a program that only counts with it has
// 15 MB. An estimate is enough for a reservation, which is corrected by the usage that is
// reported. So there is no tokenizer here.
//
// # What it does not do
//
// It makes no request, reads no clock, and judges no content. It does not count the pixels of
// images or the pages of files: each is [PartTokens]. A Filter does not decode: streams that
// are filtered must not be compressed.
package llm
