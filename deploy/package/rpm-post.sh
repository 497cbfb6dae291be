#!/bin/sh
# $1 is how many versions are installed now.
install -d -o stint -g stint -m 750 /var/lib/stint
if command -v systemctl >/dev/null; then
	systemctl daemon-reload >/dev/null 2>&1 || :
	if [ "$1" -eq 1 ]; then
		systemctl preset stint.service >/dev/null 2>&1 || :
	fi
fi
