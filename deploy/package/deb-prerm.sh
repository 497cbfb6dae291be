#!/bin/sh
# An upgrade leaves the service running: it is restarted afterwards.
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
	deb-systemd-invoke stop stint.service >/dev/null
fi
