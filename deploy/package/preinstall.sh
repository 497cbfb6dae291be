#!/bin/sh
# Creates the user that the service runs as.
set -e
getent group stint >/dev/null || groupadd --system stint
getent passwd stint >/dev/null || useradd --system --gid stint \
	--home-dir /var/lib/stint --no-create-home --shell /usr/sbin/nologin --comment 'Stint, a rate limiter' stint
