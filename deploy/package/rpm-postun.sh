#!/bin/sh
# The state and the user stay, as is usual with rpm: files may belong to that user.
if command -v systemctl >/dev/null; then
	systemctl daemon-reload >/dev/null 2>&1 || :
	if [ "$1" -ge 1 ]; then
		systemctl try-restart stint.service >/dev/null 2>&1 || :
	fi
fi
