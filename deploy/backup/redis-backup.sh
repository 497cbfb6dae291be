#!/bin/sh
# redis-backup.sh: copy the counters of one Redis server to a file.
#
# The server writes its dump; the script waits for it, copies it to
# BACKUP_DIR/redis-TIME.rdb, checks the copy, and writes its SHA-256 beside it. Run it where
# the server's files are, as a user that may read them: for each primary of a Cluster, or for
# a replica of each, to spare the primary.
#
# Environment:
#   BACKUP_DIR      where backups are; it must exist
#   BACKUP_KEEP     how many to keep, 0 for all (default 7)
#   BACKUP_TIMEOUT  how many seconds the dump may take (default 600)
#   REDIS_URL       redis://HOST:PORT or rediss://HOST:PORT (default redis://127.0.0.1:6379)
#   REDIS_USER      the user, if it is not the default user
#   REDISCLI_AUTH   its password, if there is one
#   REDIS_CACERT    a file with the CA for rediss://, if it is private
#   REDIS_DUMP      the path of the dump on this machine (default: as the server reports it)

set -eu
umask 077
LC_ALL=C
export LC_ALL

die() {
	echo "redis-backup.sh: $*" >&2
	exit 1
}

case ${1-} in
'') ;;
-h | --help)
	sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
	exit
	;;
*) die "$1: there are no arguments; see --help" ;;
esac

[ -n "${BACKUP_DIR-}" ] || die "BACKUP_DIR is not set: the directory for backups"
[ -d "$BACKUP_DIR" ] || die "BACKUP_DIR=$BACKUP_DIR is not a directory: make it, or mount it"
keep=${BACKUP_KEEP:-7}
case $keep in *[!0-9]*) die "BACKUP_KEEP=$keep is not a number" ;; esac
limit=${BACKUP_TIMEOUT:-600}
case $limit in *[!0-9]*) die "BACKUP_TIMEOUT=$limit is not a number of seconds" ;; esac
url=${REDIS_URL:-redis://127.0.0.1:6379}
case $url in
*@*) die "REDIS_URL has a user or a password in it, which everyone on this machine could see: set REDIS_USER and REDISCLI_AUTH" ;;
redis://* | rediss://*) ;;
*) die "REDIS_URL=$url: want redis://HOST:PORT or rediss://HOST:PORT" ;;
esac
for tool in redis-cli redis-check-rdb sha256sum; do
	command -v "$tool" >/dev/null || die "$tool is not on the PATH: install it"
done

ask() {
	redis-cli -u "$url" ${REDIS_USER:+--user "$REDIS_USER"} ${REDIS_CACERT:+--cacert "$REDIS_CACERT"} "$@" | tr -d '\r'
}

persistence() {
	ask INFO persistence | sed -n "s/^$1://p"
}

pong=$(ask PING)
[ "$pong" = PONG ] || die "$url does not answer PING: ${pong:-no answer}"

# A dump that is already running may lack the latest counts.
deadline=$(($(date +%s) + limit))
in_time() {
	[ "$(date +%s)" -lt "$deadline" ] || die "$url has not written its dump after $limit s: $1; raise BACKUP_TIMEOUT if it is only slow"
	sleep 1
}
while
	said=$(ask BGSAVE)
	[ "$said" != "Background saving started" ]
do
	case $said in
	*"in progress"* | *"active"*) in_time "$said" ;;
	*) die "$url: BGSAVE: ${said:-no answer}" ;;
	esac
done
while
	busy=$(persistence rdb_bgsave_in_progress)
	[ "$busy" = 1 ]
do
	in_time "it is still writing"
done
status=$(persistence rdb_last_bgsave_status)
[ "$status" = ok ] || die "$url could not write its dump: rdb_last_bgsave_status is ${status:-missing}; its log says why"

dump=${REDIS_DUMP-}
if [ -z "$dump" ]; then
	dump=$(ask CONFIG GET dir | sed -n 2p)/$(ask CONFIG GET dbfilename | sed -n 2p)
fi
[ -r "$dump" ] || die "the dump $dump cannot be read here: run this where the server's files are, or set REDIS_DUMP"

name=redis-$(date -u +%Y%m%dT%H%M%SZ).rdb
final=$BACKUP_DIR/$name
draft=$BACKUP_DIR/.$name.partial
[ ! -e "$final" ] || die "$final already exists"
trap 'rm -f -- "$draft" "$draft.sha256"' EXIT
trap 'exit 1' HUP INT TERM

# The server replaces its dump by renaming, so an open file stays complete.
cp -- "$dump" "$draft"
redis-check-rdb "$draft" >"$draft.sha256" 2>&1 || die "the copy of $dump is damaged: $(cat "$draft.sha256")"
sum=$(sha256sum <"$draft")
printf '%s  %s\n' "${sum%% *}" "$name" >"$draft.sha256"
sync "$draft" "$draft.sha256"
mv -- "$draft.sha256" "$final.sha256"
mv -- "$draft" "$final"
sync "$BACKUP_DIR"
echo "$final"

if [ "$keep" -gt 0 ]; then
	set -- "$BACKUP_DIR"/redis-[0-9]*Z.rdb
	while [ $# -gt "$keep" ]; do
		rm -f -- "$1" "$1.sha256"
		shift
	done
fi
