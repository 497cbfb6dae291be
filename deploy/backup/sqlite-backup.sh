#!/bin/sh
# sqlite-backup.sh DATABASE: copy a SQLite database and its record while they are in use.
#
# It writes BACKUP_DIR/sqlite-TIME.db, the database at one moment, and sqlite-TIME-record.db, the
# record of decisions, which is in a file beside it. It checks them, and writes their SHA-256
# beside them. Never copy the files themselves while Stint runs: the latest changes are in
# others.
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

# record DATABASE: the file beside it, stint-record.db beside stint.db.
record() {
	base=${1##*/}
	case $base in
	*.*) printf '%s\n' "${1%.*}-record.${base##*.}" ;;
	*) printf '%s\n' "$1-record" ;;
	esac
}

# copy FILE NAME: write a copy of a file to the backups.
copy() {
	draft=$BACKUP_DIR/.$2.partial
	[ ! -e "$BACKUP_DIR/$2" ] || die "$BACKUP_DIR/$2 already exists"
	sqlite3 -bail -cmd '.timeout 10000' "$1" "VACUUM INTO '$draft'" || die "DATABASE=$1 could not be copied"
	said=$(sqlite3 -readonly "$draft" 'PRAGMA integrity_check')
	[ "$said" = ok ] || die "DATABASE=$1 is damaged: $said"
	sqlite3 -readonly "$draft" 'SELECT revision FROM stint_catalog' >/dev/null || die "DATABASE=$1 is not a database of Stint"
	sum=$(sha256sum <"$draft")
	printf '%s  %s\n' "${sum%% *}" "$2" >"$draft.sha256"
	sync "$draft" "$draft.sha256"
	mv -- "$draft.sha256" "$BACKUP_DIR/$2.sha256"
	mv -- "$draft" "$BACKUP_DIR/$2"
}

name=sqlite-$(date -u +%Y%m%dT%H%M%SZ)
draft=
trap '[ -z "$draft" ] || rm -f -- "$draft" "$draft.sha256"' EXIT
trap 'exit 1' HUP INT TERM
if [ -f "$(record "$1")" ]; then
	copy "$(record "$1")" "$name-record.db"
fi
copy "$1" "$name.db"
sync "$BACKUP_DIR"
echo "$BACKUP_DIR/$name.db"

if [ "$keep" -gt 0 ]; then
	set -- "$BACKUP_DIR"/sqlite-[0-9]*Z.db
	while [ $# -gt "$keep" ]; do
		rm -f -- "$1" "$1.sha256" "${1%.db}-record.db" "${1%.db}-record.db.sha256"
		shift
	done
fi
