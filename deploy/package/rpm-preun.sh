#!/bin/sh
# $1 is how many versions stay installed.
if [ "$1" -eq 0 ] && command -v systemctl >/dev/null; then
	systemctl --no-reload disable --now stint.service >/dev/null 2>&1 || :
fi
