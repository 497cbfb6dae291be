#!/bin/sh
# sqlite-backup.sh DATABASE: copy a SQLite database while it is in use.
#
# It writes BACKUP_DIR/sqlite-TIME.db, the database at one moment, checks it, and writes its
# SHA-256 beside it. Never copy the file itself while Stint runs: the latest changes are in
# another file.
#
# Environment:
#   BACKUP_DIR   where backups are; it must exist
#   BACKUP_KEEP  how many to keep, 0 for all (default 7)

set -eu
umask 077
LC_ALL=C
export LC_ALL

die() {
	echo "sqlite-backup.sh: $*" >&2
	exit 1
}

case ${1-} in
-h | --help)
	sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
	exit
	;;
-*) die "$1: unknown; want DATABASE" ;;
esac
[ $# = 1 ] || die "want DATABASE, got $# arguments; see --help"
[ -f "$1" ] || die "DATABASE=$1: no such file; it is server.database, without sqlite:"
[ -n "${BACKUP_DIR-}" ] || die "BACKUP_DIR is not set: the directory for backups"
[ -d "$BACKUP_DIR" ] || die "BACKUP_DIR=$BACKUP_DIR is not a directory: make it, or mount it"
# It becomes part of a statement.
case $BACKUP_DIR in *\'*) die "BACKUP_DIR=$BACKUP_DIR: want a path without '" ;; esac
keep=${BACKUP_KEEP:-7}
case $keep in *[!0-9]*) die "BACKUP_KEEP=$keep is not a number" ;; esac
for tool in sqlite3 sha256sum; do
	command -v "$tool" >/dev/null || die "$tool is not on the PATH: install it"
done

name=sqlite-$(date -u +%Y%m%dT%H%M%SZ).db
final=$BACKUP_DIR/$name
draft=$BACKUP_DIR/.$name.partial
[ ! -e "$final" ] || die "$final already exists"
trap 'rm -f -- "$draft" "$draft.sha256"' EXIT
trap 'exit 1' HUP INT TERM

sqlite3 -bail -cmd '.timeout 10000' "$1" "VACUUM INTO '$draft'" || die "DATABASE=$1 could not be copied"
said=$(sqlite3 -readonly "$draft" 'PRAGMA integrity_check')
[ "$said" = ok ] || die "DATABASE=$1 is damaged: $said"
sqlite3 -readonly "$draft" 'SELECT revision FROM stint_catalog' >/dev/null || die "DATABASE=$1 is not a database of Stint"
sum=$(sha256sum <"$draft")
printf '%s  %s\n' "${sum%% *}" "$name" >"$draft.sha256"
sync "$draft" "$draft.sha256"
mv -- "$draft.sha256" "$final.sha256"
mv -- "$draft" "$final"
sync "$BACKUP_DIR"
echo "$final"

if [ "$keep" -gt 0 ]; then
	set -- "$BACKUP_DIR"/sqlite-[0-9]*Z.db
	while [ $# -gt "$keep" ]; do
		rm -f -- "$1" "$1.sha256"
		shift
	done
fi
