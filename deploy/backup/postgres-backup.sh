#!/bin/sh
# postgres-backup.sh: copy a running PostgreSQL server to a directory.
#
# It makes BACKUP_DIR/base-TIME, a base backup with the WAL that makes it consistent and a
# manifest with the SHA-256 of every file, and verifies it. With the WAL of
# postgres-archive-wal.sh, postgres-restore.sh can restore any moment since. It can run on any
# machine that reaches the server, and can use a standby.
#
# Environment:
#   BACKUP_DIR   where backups are; it must exist
#   BACKUP_KEEP  how many to keep, 0 for all (default 7)
#   WAL_ARCHIVE  the directory of postgres-archive-wal.sh; if it is set, WAL that is older
#                than the oldest backup is removed there
#   PGHOST, PGPORT, PGUSER, PGSSLMODE, PGPASSFILE
#                the server, as for psql. The user needs the attribute REPLICATION, and
#                the password is in PGPASSFILE (default ~/.pgpass).

set -eu
umask 077
LC_ALL=C
export LC_ALL

die() {
	echo "postgres-backup.sh: $*" >&2
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
archive=${WAL_ARCHIVE-}
[ -z "$archive" ] || [ -d "$archive" ] || die "WAL_ARCHIVE=$archive is not a directory: make it, or mount it"
for tool in pg_basebackup pg_verifybackup ${archive:+pg_archivecleanup}; do
	command -v "$tool" >/dev/null || die "$tool is not on the PATH: in Debian it is in /usr/lib/postgresql/VERSION/bin"
done

name=base-$(date -u +%Y%m%dT%H%M%SZ)
final=$BACKUP_DIR/$name
draft=$BACKUP_DIR/.$name.partial
[ ! -e "$final" ] || die "$final already exists"
trap 'rm -rf -- "$draft"' EXIT
trap 'exit 1' HUP INT TERM

pg_basebackup --pgdata="$draft" --format=plain --wal-method=stream --checkpoint=fast \
	--manifest-checksums=SHA256 --no-password ||
	die "no backup was made: see above, and PGHOST, PGPORT, PGUSER and PGPASSFILE"
pg_verifybackup --quiet "$draft" || die "the backup was damaged, and is removed"
mv -- "$draft" "$final"
sync "$BACKUP_DIR"
echo "$final"

if [ "$keep" -gt 0 ]; then
	set -- "$BACKUP_DIR"/base-[0-9]*Z
	while [ $# -gt "$keep" ]; do
		rm -rf -- "$1"
		shift
	done
	if [ -n "$archive" ]; then
		first=$(sed -n 's/^START WAL LOCATION: .* (file \([0-9A-F]*\))$/\1/p' "$1/backup_label")
		[ -n "$first" ] || die "$1/backup_label names no WAL: nothing is removed from $archive"
		pg_archivecleanup -x .gz "$archive" "$first"
	fi
fi
