package testllm

// created is when answers were made, in seconds: the package has no clock.
const created = 1790000000

func openAIError(kind, message string) object {
	return object{"error": object{"message": message, "type": kind, "param": nil, "code": nil}}
}

// finish is why an answer ended.
func finish(c Call, a Answer, stop, length string) string {
	if c.Max > 0 && a.Output >= c.Max*c.N {
		return length
	}
	return stop
}

// chatUsage is the usage of chat completions.
func chatUsage(a Answer) object {
	return object{
		"prompt_tokens": a.Input, "completion_tokens": a.Output, "total_tokens": a.Input + a.Output,
		"prompt_tokens_details":     object{"cached_tokens": a.Cached, "audio_tokens": 0},
		"completion_tokens_details": object{"reasoning_tokens": 0, "audio_tokens": 0},
	}
}

func wholeChat(c Call, a Answer) object {
	var choices []object
	for i := range c.N {
		choices = append(choices, object{
			"index": i, "message": object{"role": "assistant", "content": words(a.Pieces), "refusal": nil},
			"logprobs": nil, "finish_reason": finish(c, a, "stop", "length"),
		})
	}
	out := object{"id": "chatcmpl-" + c.ID, "object": "chat.completion", "created": created, "model": c.Model, "choices": choices}
	if !a.Silent {
		out["usage"] = chatUsage(a)
	}
	return out
}

func streamChat(w *writer, c Call, a Answer) {
	reports := c.AsksUsage && !a.Silent
	chunk := func(usage any, choices ...object) {
		if choices == nil {
			choices = []object{}
		}
		out := object{"id": "chatcmpl-" + c.ID, "object": "chat.completion.chunk", "created": created, "model": c.Model, "choices": choices}
		if reports {
			out["usage"] = usage
		}
		w.event("", out)
	}
	choice := func(answer int64, delta object, reason any) object {
		return object{"index": answer, "delta": delta, "logprobs": nil, "finish_reason": reason}
	}
	for answer := range c.N {
		chunk(nil, choice(answer, object{"role": "assistant", "content": ""}, nil))
	}
	w.pieces(c.N, func(answer int64, text string) { chunk(nil, choice(answer, object{"content": text}, nil)) })
	for answer := range c.N {
		chunk(nil, choice(answer, object{}, finish(c, a, "stop", "length")))
	}
	if reports {
		chunk(chatUsage(a))
		w.sent.Reported = true
	}
	w.event("", "[DONE]")
}

// response is the object of OpenAI's responses in one of its states.
func response(c Call, a Answer, status string) object {
	out := object{
		"id": "resp_" + c.ID, "object": "response", "created_at": created, "status": status, "model": c.Model, "error": nil,
		"incomplete_details": nil, "instructions": nil, "metadata": object{}, "output": []object{}, "parallel_tool_calls": true,
		"temperature": 1, "top_p": 1, "tool_choice": "auto", "tools": []object{}, "usage": nil,
	}
	switch status {
	case "incomplete":
		out["incomplete_details"] = object{"reason": "max_output_tokens"}
	case "in_progress":
		return out
	}
	out["output"] = []object{item(c, status, part(words(a.Pieces)))}
	if !a.Silent {
		out["usage"] = object{
			"input_tokens": a.Input, "input_tokens_details": object{"cached_tokens": a.Cached},
			"output_tokens": a.Output, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": a.Input + a.Output,
		}
	}
	return out
}

func item(c Call, status string, parts ...object) object {
	if parts == nil {
		parts = []object{}
	}
	return object{"id": "msg_" + c.ID, "type": "message", "status": status, "role": "assistant", "content": parts}
}

func part(text string) object {
	return object{"type": "output_text", "text": text, "annotations": []object{}}
}

func wholeResponse(c Call, a Answer) object {
	return response(c, a, finish(c, a, "completed", "incomplete"))
}

func streamResponse(w *writer, c Call, a Answer) {
	number := 0
	send := func(kind string, fields object) {
		fields["type"], fields["sequence_number"] = kind, number
		number++
		w.event(kind, fields)
	}
	within := func(fields object) object {
		fields["item_id"], fields["output_index"], fields["content_index"] = "msg_"+c.ID, 0, 0
		return fields
	}
	send("response.created", object{"response": response(c, a, "in_progress")})
	send("response.in_progress", object{"response": response(c, a, "in_progress")})
	send("response.output_item.added", object{"output_index": 0, "item": item(c, "in_progress")})
	send("response.content_part.added", within(object{"part": part("")}))
	w.pieces(1, func(_ int64, text string) {
		send("response.output_text.delta", within(object{"delta": text, "logprobs": []object{}}))
	})
	status := finish(c, a, "completed", "incomplete")
	send("response.output_text.done", within(object{"text": words(a.Pieces), "logprobs": []object{}}))
	send("response.content_part.done", within(object{"part": part(words(a.Pieces))}))
	send("response.output_item.done", object{"output_index": 0, "item": item(c, status, part(words(a.Pieces)))})
	send("response."+status, object{"response": response(c, a, status)})
	w.sent.Reported = !a.Silent
}

func wholeEmbeddings(c Call, a Answer) object {
	out := object{
		"object": "list", "model": c.Model,
		"data": []object{{"object": "embedding", "index": 0, "embedding": []float64{0.5, -0.25, 0.125}}},
	}
	if !a.Silent {
		out["usage"] = object{"prompt_tokens": a.Input, "total_tokens": a.Input}
	}
	return out
}
