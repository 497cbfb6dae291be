#!/bin/sh
# Installs Debian packages whose commands are missing: install.sh COMMAND:PACKAGE...
# As root, or through sudo; elsewhere it says what to install.
set -eu

# Where Debian keeps servers, which is not on everyone's path.
PATH=$PATH:/usr/sbin:/sbin
for dir in /usr/lib/postgresql/*/bin; do # without a match, a path that is not there
	PATH=$PATH:$dir
done

missing=
for pair in "$@"; do
	if ! command -v "${pair%%:*}" >/dev/null 2>&1; then
		missing="$missing ${pair#*:}"
	fi
done
[ -n "$missing" ] || exit 0

root=
if [ "$(id -u)" != 0 ]; then
	root="sudo -n"
	if ! sudo -n true 2>/dev/null; then
		root=none
	fi
fi
if [ "$root" = none ] || ! command -v apt-get >/dev/null 2>&1; then
	echo "missing here, install them first (these are their Debian names):$missing" >&2
	exit 1
fi

echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$root apt-get update -q >/dev/null
# Word splitting is meant: one argument for each package.
# shellcheck disable=SC2086
$root apt-get install -q -y --no-install-recommends $missing >/dev/null
