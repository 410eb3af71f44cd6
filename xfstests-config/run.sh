#!/usr/bin/env bash
# Runs xfstests on sumfs, as root. XFSTESTS_DIR names a built checkout of xfstests (its own README says how to build one and
# which users it needs: fsgqa, fsgqa2, 123456-fsgqa); it is not changed. The arguments go to its `check`: `-g quick` if there are none.
#
#   CACHE=writeback|none   one cache mode; without it both, one after the other
#   SUMFS_OPTIONS=chattr   further mount options; without this one the tests of chattr(1) are not run
#   EXCLUDE=no             also the tests in the list `exclude`
#   TIME_LIMIT=900         seconds after which a test is killed, and so fails
#   SUMFS=PATH             the program (otherwise target/release/sumfs, or the one on PATH)
#   SUMFS_PLACE=DIR        where stores, mount points and results go (otherwise /var/tmp/sumfs-xfstests)
#   SUMFS_SIZE=10G         the size of a store; some tests fill one to the last block, so SUMFS_PLACE must have room for both
#
# Each mode begins with fresh stores and ends with `sumfs check --data` of both. Results: SUMFS_PLACE/results-MODE, with a line a
# test in the file `summary` there (passed, failed, or not run and why).
# The exit code is not 0 if a test failed or a store was not clean.
set -u

fail() {
	echo "run.sh: $1" >&2
	exit 2
}

SUMFS_CONFIG=$(cd "$(dirname "$0")" && pwd)
: "${SUMFS:=$SUMFS_CONFIG/../target/release/sumfs}"
[ -x "$SUMFS" ] || SUMFS=$(command -v sumfs) || fail "no sumfs: run make build, or set SUMFS to the program"
SUMFS=$(realpath "$SUMFS")
[ "$(id -u)" = 0 ] || fail "needs root"
[ -n "${XFSTESTS_DIR:-}" ] || fail "set XFSTESTS_DIR to a built checkout of xfstests"
[ -x "$XFSTESTS_DIR/check" ] && [ -x "$XFSTESTS_DIR/ltp/fsx" ] || fail "$XFSTESTS_DIR is not a built checkout of xfstests"
for user in fsgqa fsgqa2 123456-fsgqa; do
	getent passwd "$user" >/dev/null || fail "no user $user: useradd --badname -m $user"
done
: "${SUMFS_PLACE:=/var/tmp/sumfs-xfstests}" "${SUMFS_SIZE:=10G}" "${TIME_LIMIT:=900}" "${EXCLUDE:=yes}"
export SUMFS SUMFS_CONFIG SUMFS_PLACE SUMFS_SIZE SUMFS_RUN=$$
export HOST_OPTIONS=$SUMFS_CONFIG/local.config
[ $# -gt 0 ] || set -- -g quick
[ "$EXCLUDE" = no ] || set -- -E "$SUMFS_CONFIG/exclude" "$@"

# A tmpfs may promise more than there is memory: a full store there ends with the kernel killing processes, other people's too.
check_room() {
	local need room memory
	need=$(numfmt --from=iec "$SUMFS_SIZE" 2>/dev/null) || fail "SUMFS_SIZE=$SUMFS_SIZE is no size: write it as 10G"
	need=$((2 * need))
	mkdir -p "$SUMFS_PLACE" || fail "cannot make $SUMFS_PLACE: set SUMFS_PLACE to another directory"
	room=$(command -p df -B1 --output=avail "$SUMFS_PLACE" | tail -n 1)
	if [ "$(stat -f -c %T "$SUMFS_PLACE")" = tmpfs ]; then
		memory=$(($(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo) * 1024))
		[ "$memory" -gt "$room" ] || room=$memory
	fi
	[ "$room" -ge "$need" ] || fail "$SUMFS_PLACE has room for $(numfmt --to=iec "$room"), two full stores take $(numfmt --to=iec "$need"): set SUMFS_PLACE to another directory, or SUMFS_SIZE"
}
check_room

helper=/sbin/mount.fuse.sumfs-$SUMFS_RUN
session=

clean_up() {
	[ -z "$session" ] || kill -- "-$session" 2>/dev/null
	for name in test scratch; do
		umount -l "$SUMFS_PLACE/$name" 2>/dev/null
	done
	rm -f "$helper"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# mount(8) looks for its helpers there only. The variables are written down: not every caller of mount passes them on.
install_helper() {
	{
		echo '#!/usr/bin/env bash'
		echo '# Made by run.sh of xfstests-config, which removes it at its end.'
		printf 'export SUMFS=%q SUMFS_PLACE=%q SUMFS_SIZE=%q\n' "$SUMFS" "$SUMFS_PLACE" "$SUMFS_SIZE"
		printf 'exec %q "$@"\n' "$SUMFS_CONFIG/mount.fuse.sumfs"
	} >"$helper"
	chmod 755 "$helper"
}

# Kills the tests of our session that run for longer than the limit. A test is a child of check, and all below it goes with it.
watch_tests() {
	while sleep 5; do
		ps -s "$session" -o pid=,etimes=,args= | while read -r pid seconds command; do
			case $command in
			*tests/*/[0-9][0-9][0-9]*) ;;
			*/bin/bash\ ./[0-9][0-9][0-9]*) ;;
			*) continue ;;
			esac
			# A test that has just begun may be shown with an age below 0, as a huge number.
			[ "$seconds" -gt "$TIME_LIMIT" ] && [ "$seconds" -lt 1000000 ] || continue
			echo "run.sh: $command runs for $seconds s: killed" >&2
			kill_tree "$pid"
		done
	done
}

kill_tree() {
	local child
	for child in $(ps --ppid "$1" -o pid=); do
		kill_tree "$child"
	done
	kill -KILL "$1" 2>/dev/null
}

# From the last run in check.log, which check writes at its end: a killed check leaves no summary.
summarize() {
	local of=$RESULT_BASE/summary
	awk -v base="$RESULT_BASE" '
		/^Ran: / { split("", ran); split("", out); for (i = 2; i <= NF; i++) { ran[i] = $i; out[$i] = "passed" } last = NF }
		/^Not run: / { for (i = 3; i <= NF; i++) out[$i] = "not run" }
		/^Failures: / { for (i = 2; i <= NF; i++) out[$i] = "failed" }
		END {
			for (i = 2; i <= last; i++) {
				reason = ""
				if (out[ran[i]] == "not run") getline reason < (base "/" ran[i] ".notrun")
				print ran[i] "\t" out[ran[i]] (reason == "" ? "" : "\t" reason)
				count[out[ran[i]]]++
			}
			printf "summary: %d executed, %d passed, %d failed, %d not run\n", count["passed"] + count["failed"],
				count["passed"], count["failed"], count["not run"] >"/dev/stderr"
		}' "$RESULT_BASE/check.log" >"$of" && echo "a line a test: $of"
}

run_mode() {
	local mode=$1 code watcher
	shift
	export CACHE=$mode RESULT_BASE=$SUMFS_PLACE/results-$mode
	for name in test scratch; do
		umount "$SUMFS_PLACE/$name" 2>/dev/null
		rm -rf "$SUMFS_PLACE/$name.store"
	done
	rm -f "$RESULT_BASE/check.log" "$RESULT_BASE/summary"
	mkdir -p "$RESULT_BASE" "$SUMFS_PLACE/test" "$SUMFS_PLACE/scratch"
	install_helper
	cd "$XFSTESTS_DIR" || return 2
	setsid ./check "$@" &
	session=$!
	watch_tests &
	watcher=$!
	wait "$session"
	code=$?
	session=
	kill "$watcher" 2>/dev/null
	wait "$watcher" 2>/dev/null
	[ ! -f "$RESULT_BASE/check.log" ] || summarize
	for name in test scratch; do
		! mountpoint -q "$SUMFS_PLACE/$name" || "$SUMFS" umount "$SUMFS_PLACE/$name" || code=1
		[ -d "$SUMFS_PLACE/$name.store" ] || continue
		echo "sumfs check --data, $name:"
		"$SUMFS" check --data "$SUMFS_PLACE/$name.store" || code=1
	done
	return "$code"
}

worst=0
for mode in ${CACHE:-none writeback}; do
	echo "== cache=$mode: check $*"
	run_mode "$mode" "$@" || worst=1
done
exit "$worst"
