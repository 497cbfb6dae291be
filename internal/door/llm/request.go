package llm

import (
	"math/bits"
	"strings"

	"github.com/stintdev/stint/internal/kit/scan"
)

// PartTokens is what an image, a recording or a file in a prompt counts as. Their true
// number depends on pixels and pages, which are not looked at; it is near that of an image
// as large as providers take it.
const PartTokens = 1600

// perMessage is for what providers put around a message.
const perMessage = 4

// Request is what a request says about the tokens that it may use.
type Request struct {
	Shape  Shape
	Model  string // its first scan.MaxText bytes
	Stream bool
	// AsksUsage says that the client has asked for usage in the stream.
	AsksUsage bool
	// N is how many answers are asked for, at least 1.
	N int64
	// Cap is the largest number of output tokens for one answer that the request declares,
	// or 0 if it declares none. Embeddings have no output, and need none.
	Cap int64
	// Prompt is an estimate of the input tokens, with Parts.
	Prompt int64
	// Parts is how many images, recordings and files the prompt has.
	Parts int64
	// Whole says that the whole body was read, and is a JSON object. Otherwise the other
	// fields are what was found before it was cut or broken.
	Whole bool

	splice splice
}

// ReadRequest reads the body of a request, or the beginning of it: size is the length of the
// whole, or negative if that is not known. A body that is not JSON is not an error: that is
// for the provider to say. If the shape is Unknown, it is guessed from the body.
func ReadRequest(shape Shape, body []byte, size int64) Request {
	r := &requestReader{Request: Request{Shape: shape, N: 1}}
	r.match = scan.NewMatch(requestPaths, (*requestFinder)(r))
	r.json = scan.NewJSON(r)
	r.json.Write(body)
	r.Whole = r.json.Close() && size == int64(len(body)) && r.isObject
	r.finish(min(max(size, int64(len(body))), scan.MaxNumber))
	return r.Request
}

// Reserve returns what to reserve: the prompt as input, and the cap of every answer as output.
// If no cap is declared it is the prompt alone, and capped is false.
func (r *Request) Reserve() (u Usage, capped bool) {
	u = Usage{Input: r.Prompt, Output: times(r.Cap, r.N), Model: r.Model, Estimated: true}
	u.Total = add(u.Input, u.Output)
	return u, r.Cap > 0 || r.Shape == Embeddings
}

// times multiplies, up to scan.MaxNumber.
func times(a, b int64) int64 {
	if high, low := bits.Mul64(uint64(a), uint64(b)); high == 0 && low <= scan.MaxNumber {
		return int64(low)
	}
	return scan.MaxNumber
}

// The paths of a request.
const (
	pModel = iota
	pStream
	pN
	pBestOf
	pMaxTokens
	pMaxCompletionTokens
	pMaxOutputTokens
	pBudget
	pStreamOptions
	pIncludeUsage
	pPromptEach
	pSystem
	pVersion
	pFormat
	pDimensions
	pMessages
	pInput
	pPrompt
	requestPathCount
)

var requestPaths = mustPaths(
	pModel, "model", pStream, "stream", pN, "n", pBestOf, "best_of",
	pMaxTokens, "max_tokens", pMaxCompletionTokens, "max_completion_tokens", pMaxOutputTokens, "max_output_tokens",
	pBudget, "thinking.budget_tokens", pStreamOptions, "stream_options", pIncludeUsage, "stream_options.include_usage",
	pPromptEach, "prompt[*]", pSystem, "system", pVersion, "anthropic_version", pFormat, "encoding_format",
	pDimensions, "dimensions", pMessages, "messages", pInput, "input", pPrompt, "prompt",
)

// mustPaths compiles paths that are constants, each after its index.
func mustPaths(pairs ...any) *scan.Paths {
	paths := make([]string, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		paths[pairs[i].(int)] = pairs[i+1].(string)
	}
	p, err := scan.NewPaths(paths...)
	if err != nil {
		panic("llm: " + err.Error())
	}
	return p
}

// requestReader visits the tokens of a request. It finds paths, and counts the prompt.
type requestReader struct {
	Request
	match *scan.Match
	json  *scan.JSON

	isObject bool
	seen     [requestPathCount]bool
	numbers  [requestPathCount]int64
	prompts  int64

	depth   int
	names   [scan.MaxDepth + 1]role // of the last member on each level
	inText  bool
	media   bool
	text    Estimate // of the string
	prompt  Estimate
	numeric int64 // tokens that are not text
}

// role is what a member of a request is for.
type role uint8

const (
	other     role = iota
	words          // part of the prompt: its texts count
	schema         // part of the prompt, with its names
	imageURL       // a text is an image, and so is the url in it
	source         // has data, or a url
	data           // is not text, if it is in source
	reference      // likewise
	fileData       // is not text
)

// roles are those of names. Those of the first level are parts of the prompt.
var roles = [2]map[string]role{
	{
		"messages": words, "system": words, "input": words, "instructions": words, "prompt": words,
		"tools": schema, "functions": schema, "response_format": schema, "text": schema,
	},
	{
		"image_url": imageURL, "source": source, "input_audio": source,
		"data": data, "url": reference, "file_data": fileData,
	},
}

var _ scan.Visitor = (*requestReader)(nil)

// Begin implements [scan.Visitor].
func (r *requestReader) Begin(array bool) {
	r.isObject = r.isObject || (r.depth == 0 && !array)
	if r.depth == 2 && !array && r.names[1] == words {
		r.numeric += perMessage
	}
	r.depth++
	r.names[r.depth] = other
	if array && r.depth > 1 { // elements are what the array is
		r.names[r.depth] = r.names[r.depth-1]
	}
	r.match.Begin(array)
}

// End implements [scan.Visitor].
func (r *requestReader) End() {
	r.depth--
	r.match.End()
}

// Name implements [scan.Visitor].
func (r *requestReader) Name(name []byte, whole bool) {
	r.names[r.depth] = roles[min(r.depth-1, 1)][string(name)]
	if r.depth > 1 && r.names[1] == schema {
		var e Estimate
		e.Add(name)
		r.prompt.add(&e)
	}
	r.match.Name(name, whole)
}

// Text implements [scan.Visitor].
func (r *requestReader) Text(piece []byte, last bool) {
	r.match.Text(piece, last)
	if r.names[1] == other {
		return
	}
	if !r.inText {
		r.inText, r.text, r.media = true, Estimate{}, r.isMedia()
	}
	r.text.Add(piece)
	if !last {
		return
	}
	r.inText = false
	if r.media && r.text.counts[space] == 0 {
		r.Parts++
	} else {
		r.prompt.add(&r.text)
	}
}

// isMedia reports whether a text is not for reading: an image, or where it is.
func (r *requestReader) isMedia() bool {
	if r.depth < 2 {
		return false
	}
	within := r.names[r.depth-1]
	switch r.names[r.depth] {
	case imageURL, fileData:
		return true
	case data:
		return within == source
	case reference:
		return within == source || within == imageURL
	default:
		return false
	}
}

// Number implements [scan.Visitor].
func (r *requestReader) Number(n int64) {
	r.match.Number(n)
	if r.depth > 1 && r.names[1] == words {
		r.numeric++ // a prompt may be given as tokens
	}
}

// Word implements [scan.Visitor].
func (r *requestReader) Word(first byte) { r.match.Word(first) }

// requestFinder is a requestReader that gets what is found.
type requestFinder requestReader

// Text implements [scan.Finder].
func (*requestFinder) Text(int, []byte) {}

// Value implements [scan.Finder]. Of a member that is repeated, the last one holds, and of
// caps the largest one.
func (r *requestFinder) Value(path int, v scan.Value) {
	r.seen[path] = true
	switch path {
	case pModel:
		r.Model = string(v.Text)
	case pStream:
		r.Stream = v.Kind == scan.True
	case pPromptEach:
		if v.Kind == scan.String || v.Kind == scan.Array {
			r.prompts++
		}
	case pStreamOptions:
		r.splice = splice{kind: v.Kind, present: true, start: r.json.Start(), end: r.json.Offset()}
		r.AsksUsage = false
	case pIncludeUsage:
		r.splice.inner, r.splice.start, r.splice.end, r.splice.kind = true, r.json.Start(), r.json.Offset(), v.Kind
		r.AsksUsage = v.Kind == scan.True
	default:
		r.numbers[path] = max(r.numbers[path], v.Number)
	}
}

// finish draws the conclusions. What was not read of size bytes of JSON counts as text.
func (r *requestReader) finish(size int64) {
	if r.Shape == Unknown {
		r.Shape = r.guess()
	}
	r.N = max(r.numbers[pN], r.numbers[pBestOf], 1)
	if r.Shape == Completions {
		r.N = times(r.N, max(r.prompts, 1))
	}
	r.Cap = max(r.numbers[pMaxTokens], r.numbers[pMaxCompletionTokens], r.numbers[pMaxOutputTokens])
	if budget := r.numbers[pBudget]; budget >= r.numbers[pMaxTokens] { // it is not part of max_tokens
		r.Cap = min(r.Cap+budget, scan.MaxNumber)
	}
	if r.Shape == Embeddings {
		r.N, r.Cap = 1, 0
	}
	if r.inText { // a body that was cut
		r.prompt.add(&r.text)
	}
	r.Prompt = r.prompt.Tokens() + r.numeric + times(r.Parts, PartTokens) + ofBytes(size-r.json.Offset())
	switch {
	case !r.isObject && ofBytes(size) > PartTokens: // a form with a file, for example
		r.Parts, r.Prompt = 1, PartTokens
	case r.Prompt == 0:
		r.Prompt = ofBytes(size) // there is no prompt that we know
	}
	r.Prompt = min(r.Prompt, scan.MaxNumber)
}

// guess returns the shape of a request whose path tells nothing.
func (r *requestReader) guess() Shape {
	switch {
	case r.seen[pMessages] && (r.seen[pSystem] || r.seen[pVersion] || r.seen[pBudget]):
		return Messages
	case r.seen[pMessages]:
		return Chat
	case r.seen[pInput] && (r.seen[pFormat] || r.seen[pDimensions] || strings.Contains(r.Model, "embed")):
		return Embeddings
	case r.seen[pInput]:
		return Responses
	case r.seen[pPrompt]:
		return Completions
	}
	return Unknown
}
