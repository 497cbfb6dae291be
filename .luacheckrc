-- Redis' Lua, for luacheck. The files of redisstore/lua are one script: what a
-- file defines is used by those after it, so they are checked as one, too.
stds.redis = {
  read_globals = {
    "KEYS", "ARGV", "struct",
    redis = { fields = { "call", "pcall" } },
  },
}
std = "lua51+redis"
max_line_length = 120
