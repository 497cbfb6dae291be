package testllm

func anthropicError(kind, message string) object {
	return object{"type": "error", "error": object{"type": kind, "message": message}}
}

// messageUsage is the usage of messages, where what was read from a cache is not part of the
// input.
func messageUsage(a Answer, output int64) object {
	return object{
		"input_tokens": a.Input - a.Cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": a.Cached,
		"output_tokens": output, "service_tier": "standard",
	}
}

func message(c Call, content []object, reason any, usage object) object {
	return object{
		"id": "msg_" + c.ID, "type": "message", "role": "assistant", "model": c.Model, "content": content,
		"stop_reason": reason, "stop_sequence": nil, "usage": usage,
	}
}

func wholeMessage(c Call, a Answer) object {
	content := []object{{"type": "text", "text": words(a.Pieces)}}
	out := message(c, content, finish(c, a, "end_turn", "max_tokens"), messageUsage(a, a.Output))
	if a.Silent {
		delete(out, "usage")
	}
	return out
}

func streamMessage(w *writer, c Call, a Answer) {
	send := func(kind string, fields object) {
		fields["type"] = kind
		w.event(kind, fields)
	}
	start := message(c, []object{}, nil, messageUsage(a, 1))
	end := object{"delta": object{"stop_reason": finish(c, a, "end_turn", "max_tokens"), "stop_sequence": nil}}
	if a.Silent {
		delete(start, "usage")
	} else {
		end["usage"] = object{"output_tokens": a.Output}
	}
	send("message_start", object{"message": start})
	send("content_block_start", object{"index": 0, "content_block": object{"type": "text", "text": ""}})
	send("ping", object{})
	w.pieces(1, func(_ int64, text string) {
		send("content_block_delta", object{"index": 0, "delta": object{"type": "text_delta", "text": text}})
	})
	send("content_block_stop", object{"index": 0})
	send("message_delta", end)
	w.sent.Reported = !a.Silent
	send("message_stop", object{})
}
