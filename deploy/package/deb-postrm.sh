#!/bin/sh
# Removing keeps the configuration and the state; purging removes them, and the user.
set -e
if [ -d /run/systemd/system ]; then
	systemctl --system daemon-reload >/dev/null || true
fi
case "$1" in
remove)
	if command -v deb-systemd-helper >/dev/null; then
		deb-systemd-helper mask stint.service >/dev/null || true
	fi
	;;
purge)
	if command -v deb-systemd-helper >/dev/null; then
		deb-systemd-helper purge stint.service >/dev/null || true
		deb-systemd-helper unmask stint.service >/dev/null || true
	fi
	rm -rf /var/lib/stint
	rm -f /etc/stint/stint.env
	rmdir --ignore-fail-on-non-empty /etc/stint 2>/dev/null || true
	if getent passwd stint >/dev/null; then
		userdel stint
	fi
	if getent group stint >/dev/null; then
		groupdel stint
	fi
	;;
esac
