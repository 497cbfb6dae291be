#!/bin/sh
# redis-restore.sh [--aof] BACKUP DIR: put a backup where a Redis server will read it.
#
# BACKUP is a file of redis-backup.sh, with its .sha256 beside it. DIR is the server's
# directory (dir), and the server must not be running. Nothing is overwritten. Run it as the
# server's user, or chown the files afterwards.
#
# --aof is for a server with "appendonly yes", of Redis 7 or later: it reads its append-only
# file and ignores a dump. Start an older server with "appendonly no", and then run
# CONFIG SET appendonly yes.
#
# Environment:
#   REDIS_DBFILENAME  the server's dbfilename (default dump.rdb)
#   REDIS_AOF_DIR     its appenddirname (default appendonlydir)
#   REDIS_AOF_NAME    its appendfilename (default appendonly.aof)

set -eu
umask 077

die() {
	echo "redis-restore.sh: $*" >&2
	exit 1
}

aof=
case ${1-} in
-h | --help)
	sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
	exit
	;;
--aof)
	aof=yes
	shift
	;;
-*) die "$1: unknown; want [--aof] BACKUP DIR" ;;
esac
[ $# = 2 ] || die "want [--aof] BACKUP DIR, got $# arguments; see --help"
backup=$1
dir=$2
[ -f "$backup" ] || die "$backup: no such backup"
[ -f "$backup.sha256" ] || die "$backup.sha256 is missing: without it the backup cannot be verified"
[ -d "$dir" ] || die "$dir is not a directory: create it, for the server's user"
dump=$dir/${REDIS_DBFILENAME:-dump.rdb}
log=$dir/${REDIS_AOF_DIR:-appendonlydir}
for old in "$dump" "$log"; do
	[ ! -e "$old" ] || die "$old already exists: stop the server, and move it away"
done
for tool in redis-check-rdb sha256sum; do
	command -v "$tool" >/dev/null || die "$tool is not on the PATH: install it"
done

noted=$(cut -d ' ' -f 1 <"$backup.sha256")
sum=$(sha256sum <"$backup")
[ "${sum%% *}" = "$noted" ] || die "$backup is damaged: its SHA-256 is ${sum%% *}, and was $noted; use another backup"
said=$(redis-check-rdb "$backup" 2>&1) || die "$backup is damaged: $said"

# It gets its name when it is complete.
draft=$dir/.restore.partial
trap 'rm -rf -- "$draft"' EXIT
trap 'exit 1' HUP INT TERM
if [ -n "$aof" ]; then
	# An append-only file whose base is the dump, and nothing after it.
	name=${REDIS_AOF_NAME:-appendonly.aof}
	mkdir -- "$draft"
	cp -- "$backup" "$draft/$name.1.base.rdb"
	echo "file $name.1.base.rdb seq 1 type b" >"$draft/$name.manifest"
	sync "$draft/$name.1.base.rdb" "$draft/$name.manifest" "$draft"
	mv -- "$draft" "$log"
	echo "$log"
else
	cp -- "$backup" "$draft"
	sync "$draft"
	mv -- "$draft" "$dump"
	echo "$dump"
fi
sync "$dir"
