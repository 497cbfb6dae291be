package redisstore

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"

	"github.com/redis/rueidis"
)

//go:embed lua
var files embed.FS

// script is the one script, and its name in Redis. lua/order says how it is put
// together.
var script, scriptSHA = func() (text, sha string) {
	var b strings.Builder
	for name := range strings.FieldsSeq(read("order")) {
		b.WriteString(strip(read(name + ".lua")))
	}
	sum := sha1.Sum([]byte(b.String()))
	return b.String(), hex.EncodeToString(sum[:])
}()

func read(name string) string {
	text, err := files.ReadFile("lua/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}

// strip drops comments, blank lines and indents, which Redis would keep and
// replicate.
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

// eval runs the script. Redis forgets scripts, by a restart, a failover or SCRIPT
// FLUSH; then it is sent whole, once.
func (s *Store) eval(ctx context.Context, client rueidis.Client, keys []string, blob string) rueidis.RedisResult {
	n := int64(len(keys))
	res := client.Do(ctx, client.B().Evalsha().Sha1(scriptSHA).Numkeys(n).Key(keys...).Arg(blob).Build())
	if err, ok := rueidis.IsRedisErr(res.Error()); ok && err.IsNoScript() {
		s.stats.scripts.Add(1)
		res = client.Do(ctx, client.B().Eval().Script(script).Numkeys(n).Key(keys...).Arg(blob).Build())
	}
	return res
}
