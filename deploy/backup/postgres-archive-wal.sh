#!/bin/sh
# postgres-archive-wal.sh PATH NAME ARCHIVE: keep a file of WAL. For archive_command:
#
#   archive_command = '/usr/local/lib/stint/postgres-archive-wal.sh "%p" "%f" /srv/wal'
#
# ARCHIVE is a directory on other disks than the server's; it has to be there, so that
# nothing is written below a mount point that is not mounted. The file is there as NAME.gz
# when it is whole and synced. One that is there is never overwritten: if it is the same,
# all is well, as when the server was killed before it had noted that; otherwise another
# server archives to the same place.

set -eu
umask 077

die() {
	echo "postgres-archive-wal.sh: $*" >&2
	exit 1
}

case ${1-} in
-h | --help)
	sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
	exit
	;;
esac
[ $# = 3 ] || die "want PATH NAME ARCHIVE, got $# arguments; --help tells more"
path=$1
final=$3/$2.gz
draft=$3/.$2.$$.partial
case $2 in '' | */* | .*) die "NAME=$2 is not the name of a file" ;; esac
[ -r "$path" ] || die "PATH=$path cannot be read"
[ -d "$3" ] || die "ARCHIVE=$3 is not a directory: make it, or mount it"

if [ ! -e "$final" ]; then
	trap 'rm -f -- "$draft"' EXIT
	trap 'exit 1' HUP INT TERM
	gzip -1 -c <"$path" >"$draft" # most of a segment is empty when it is closed by time
	sync "$draft"
	# Unlike mv, ln fails if someone was quicker.
	if ln -- "$draft" "$final" 2>/dev/null; then
		sync "$3"
		exit
	fi
	[ -e "$final" ] || die "$final cannot be made"
fi
gzip -d -c <"$final" | cmp -s - "$path" ||
	die "$final is there already, and is another: each server needs an ARCHIVE of its own"
