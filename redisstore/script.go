package redisstore

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"maps"
	"regexp"
	"strings"
	"sync"

	"github.com/redis/rueidis"
)

//go:embed lua
var files embed.FS

// script is the Lua script, and its name in Redis.
type script struct{ text, sha string }

var (
	byRedis = newScript(nil)
	// byOther is for stores whose clock is not that of Redis: their counters live for an hour longer, so that they are
	// there for as long as that clock stands still.
	byOther = sync.OnceValue(func() script { return newScript(map[string]string{"SPARE": "3600000"}) })
)

// newScript returns the script with these values of constants. lua/order lists its files in order.
func newScript(values map[string]string) script {
	var b strings.Builder
	for name := range strings.FieldsSeq(read("order")) {
		b.WriteString(read(name + ".lua"))
	}
	text := strip(inline(b.String(), values))
	sum := sha1.Sum([]byte(text))
	return script{text, hex.EncodeToString(sum[:])}
}

func read(name string) string {
	text, err := files.ReadFile("lua/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}

// strip removes comments, blank lines and indentation, which Redis would store and replicate.
func strip(lua string) string {
	var b strings.Builder
	for line := range strings.Lines(lua) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "--") {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// inline replaces named constants by their values, unless it is given others. Their names are in capitals, and are defined
// at the beginning of a line. As Lua variables, every call would have to create them again for
// each function that uses them.
func inline(lua string, others map[string]string) string {
	values := map[string]string{}
	lua = definition.ReplaceAllStringFunc(lua, func(line string) string {
		m := definition.FindStringSubmatch(line)
		names, numbers := strings.Split(m[1], ", "), strings.Split(m[2], ", ")
		for i, name := range names {
			values[name] = numbers[i]
		}
		return ""
	})
	maps.Copy(values, others)
	return capitals.ReplaceAllStringFunc(lua, func(name string) string {
		if value, ok := values[name]; ok {
			return value
		}
		return name
	})
}

var (
	definition = regexp.MustCompile(`(?m)^local ([A-Z]+(?:, [A-Z]+)*) = ([0-9]+(?:, [0-9]+)*)(?: --.*)?\n`)
	capitals   = regexp.MustCompile(`\b[A-Z]+\b`)
)

// eval runs the script. If Redis does not have it, after a restart, a failover or SCRIPT FLUSH,
// eval sends its source.
func (s *Store) eval(ctx context.Context, client rueidis.Client, keys []string, blob string) rueidis.RedisResult {
	n := int64(len(keys))
	res := client.Do(ctx, client.B().Evalsha().Sha1(s.script.sha).Numkeys(n).Key(keys...).Arg(blob).Build())
	if err, ok := rueidis.IsRedisErr(res.Error()); ok && err.IsNoScript() {
		s.stats.scripts.Add(1)
		res = client.Do(ctx, client.B().Eval().Script(s.script.text).Numkeys(n).Key(keys...).Arg(blob).Build())
	}
	return res
}
