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

echo "installing with apt-get, and what they depend on:$missing"
echo "(their services are neither started nor enabled: the tests start servers of their own)"

# Debian's packages ask policy-rc.d whether to start a service; 101 says no. Services that
# run already are left alone, too. One that is there, as in a container, stays in charge.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	trap '$root rm -f $policy' EXIT
	trap 'exit 130' HUP INT TERM
	printf '#!/bin/sh\nexit 101\n' | $root tee $policy >/dev/null
	$root chmod 755 $policy
fi
enabled() { systemctl list-unit-files --state=enabled --no-legend 2>/dev/null | cut -d' ' -f1; }
before=$(enabled)

$root apt-get update -q >/dev/null
# Word splitting is meant: one argument for each package.
# shellcheck disable=SC2086
$root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing >/dev/null

# What is enabled would start with the machine.
for unit in $(enabled); do
	case " $(echo $before) " in
	*" $unit "*) ;;
	*) $root systemctl disable "$unit" >/dev/null 2>&1 || true ;;
	esac
done
