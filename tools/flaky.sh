#!/bin/sh
# Runs tests many times under the race detector, with four busy loops beside them:
# flaky.sh PACKAGE..., or without one all packages whose tests wait or start servers.
# RUN names tests (all), and COUNT says how often (20). It goes on after a failure, and
# lists at the end what failed.
set -u
GO=${GO:-go} COUNT=${COUNT:-20}

if [ $# = 0 ]; then
	# Shell words are meant: paths of packages have no spaces.
	# shellcheck disable=SC2046
	set -- $(grep -rlE '^[[:space:]]*"(net|net/http/httptest|os/exec|time|.*/internal/test/[a-z]+)"$' --include='*_test.go' \
		--exclude-dir=bench --exclude-dir=node_modules . | xargs -n1 dirname | sort -u)
fi

# A loop also ends by itself when this script is gone, however that happened.
loops=
trap 'kill $loops 2>/dev/null' EXIT
trap 'exit 130' HUP INT TERM
for _ in 1 2 3 4; do
	(while kill -0 $$ 2>/dev/null; do :; done) &
	loops="$loops $!"
done

failed=
for package in "$@"; do
	"$GO" test -race -gcflags='modernc.org/...=-race=false' -shuffle=on -count="$COUNT" -timeout 4h ${RUN:+-run "$RUN"} "$package" || failed="$failed $package"
done
[ -z "$failed" ] || { echo "flaky:$failed" >&2; exit 1; }
