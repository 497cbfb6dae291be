#!/bin/sh
# postgres-archive-wal.sh PATH NAME ARCHIVE: archive a WAL file. For archive_command:
#
#   archive_command = '/usr/local/lib/stint/postgres-archive-wal.sh "%p" "%f" /srv/wal'
#
# ARCHIVE is a directory on other disks than the server's; it must exist, so that nothing is
# written below a mount point that is not mounted. The file gets its name, NAME.gz, when it is
# complete and synced. An existing file is never overwritten: if it has the same contents, the
# script succeeds, because the server may have been killed before it noted that; otherwise
# another server archives to the same directory.

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
[ $# = 3 ] || die "want PATH NAME ARCHIVE, got $# arguments; see --help"
path=$1
final=$3/$2.gz
draft=$3/.$2.$$.partial
case $2 in '' | */* | .*) die "NAME=$2 is not the name of a file" ;; esac
[ -r "$path" ] || die "PATH=$path cannot be read"
[ -d "$3" ] || die "ARCHIVE=$3 is not a directory: make it, or mount it"

if [ ! -e "$final" ]; then
	trap 'rm -f -- "$draft"' EXIT
	trap 'exit 1' HUP INT TERM
	gzip -1 -c <"$path" >"$draft" # a segment that archive_timeout closes is mostly empty
	sync "$draft"
	# Unlike mv, ln fails if the file exists.
	if ln -- "$draft" "$final" 2>/dev/null; then
		sync "$3"
		exit
	fi
	[ -e "$final" ] || die "$final cannot be created"
fi
gzip -d -c <"$final" | cmp -s - "$path" ||
	die "$final already exists with other contents: each server needs its own ARCHIVE"
