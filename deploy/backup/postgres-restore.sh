#!/bin/sh
# postgres-restore.sh [--time TIME] [--timeline ID] [--apart] BACKUP ARCHIVE DATA: make a
# server from a backup.
#
# BACKUP is a directory of postgres-backup.sh, ARCHIVE has the WAL that
# postgres-archive-wal.sh has archived since, and DATA is the data directory of the new server:
# empty, or not existing. Run it as the user that PostgreSQL runs as, with the programs of the
# version that made the backup; then start the server on DATA. It replays the WAL, and is
# writable when that is done.
#
#   --time TIME    restore to this time, such as 2027-01-31T09:30:00Z; BACKUP must be older.
#                  Default: to the end of the archive.
#   --timeline ID  "current" follows the timeline of BACKUP, and not that of an earlier
#                  restore or failover (default "latest")
#   --apart        for a server beside the one in use: it archives nothing, so that its WAL
#                  does not get into the archive of the real one

set -eu
umask 077

die() {
	echo "postgres-restore.sh: $*" >&2
	exit 1
}

time=
timeline=latest
archiving=on
while :; do
	case ${1-} in
	-h | --help)
		sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
		exit
		;;
	--time)
		time=${2-}
		case $time in
		*[!0-9TZ:.+-]*) die "--time $time: want a time such as 2027-01-31T09:30:00Z" ;;
		# The zone is required: without one it would be that of the server.
		????-??-??T??:??:??*Z) time=${time%Z}+00:00 ;; # PostgreSQL does not accept Z in its settings
		????-??-??T??:??:??*[+-]??:??) ;;
		*) die "--time ${time:-(missing)}: want a time with its zone, such as 2027-01-31T09:30:00Z" ;;
		esac
		shift 2
		;;
	--timeline)
		timeline=${2-}
		case $timeline in
		latest | current) ;;
		'' | *[!0-9]*) die "--timeline ${timeline:-(missing)}: want latest, current or a number" ;;
		esac
		shift 2
		;;
	--apart)
		archiving=off
		shift
		;;
	-*) die "$1: unknown; want [--time TIME] [--timeline ID] [--apart] BACKUP ARCHIVE DATA" ;;
	*) break ;;
	esac
done
[ $# = 3 ] || die "want [--time TIME] [--timeline ID] [--apart] BACKUP ARCHIVE DATA, got $# arguments; see --help"
backup=$1
data=$3
[ "$(id -u)" != 0 ] || die "run this as the user that PostgreSQL runs as, not as root"
command -v pg_verifybackup >/dev/null ||
	die "pg_verifybackup is not on the PATH: in Debian it is in /usr/lib/postgresql/VERSION/bin"
[ -f "$backup/backup_manifest" ] || die "BACKUP=$backup is not a backup: it has no backup_manifest"
[ -d "$2" ] || die "ARCHIVE=$2 is not a directory"
archive=$(cd -- "$2" && pwd)
# It becomes part of a command in the settings.
case $archive in *[!A-Za-z0-9/._+-]*) die "ARCHIVE=$archive: want a path of letters, digits and / . _ + -" ;; esac
if [ -e "$data" ] && [ -n "$(ls -A -- "$data")" ]; then # of a file, ls prints its name
	die "DATA=$data is not empty: nothing is overwritten; move it away, or choose another"
fi

pg_verifybackup --quiet "$backup" || die "$backup is damaged: use another backup"
mkdir -p -- "$data"
cp -RPp -- "$backup/." "$data"
chmod 700 -- "$data"
rm -f -- "$data/standby.signal"
# Set everything that an earlier restore may have set: the last line wins. A file that is not
# in the archive is its end; a damaged file must not be mistaken for that.
cat >>"$data/postgresql.auto.conf" <<END
restore_command = 'test -e "$archive/%f.gz" || exit 1; gzip -d -c <"$archive/%f.gz" >"%p" || exit 255'
recovery_target_time = '$time'
recovery_target_timeline = '$timeline'
recovery_target_action = 'promote'
archive_mode = '$archiving'
END
: >"$data/recovery.signal"
echo "$data"
