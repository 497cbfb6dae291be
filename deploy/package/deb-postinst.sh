#!/bin/sh
set -e
case "$1" in
configure | abort-upgrade | abort-deconfigure | abort-remove) ;;
*) exit 0 ;;
esac
install -d -o stint -g stint -m 750 /var/lib/stint

# The administrator may have disabled or masked the unit: deb-systemd-helper leaves it so.
deb-systemd-helper unmask stint.service >/dev/null || true
if deb-systemd-helper --quiet was-enabled stint.service; then
	deb-systemd-helper enable stint.service >/dev/null || true
else
	deb-systemd-helper update-state stint.service >/dev/null || true
fi
if [ -d /run/systemd/system ]; then
	systemctl --system daemon-reload >/dev/null || true
	if [ -n "$2" ]; then # the version before
		deb-systemd-invoke try-restart stint.service >/dev/null || true
	else
		deb-systemd-invoke start stint.service >/dev/null || true
	fi
fi
