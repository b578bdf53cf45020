#!/usr/bin/env bash
# Threads that wait poll briefly, unless the user says otherwise; and a command does the same with and without that.
source "$(dirname "$0")/../support/cli.sh"
unset OMP_WAIT_POLICY GOMP_SPINCOUNT

# polls VARIABLE=VALUE: how often GNU's OpenMP polls, as it says itself when the program begins, the last time.
polls() { env "$1" OMP_DISPLAY_ENV=verbose "$terse" --version 2>&1 >"$work/version" | sed -n "s/.*GOMP_SPINCOUNT = '\([0-9]*\)'.*/\1/p" | tail -n 1; }

[ "$(polls NOTHING=1)" = 1000 ] || fail "without a wish threads poll $(polls NOTHING=1) times"
grep -q '^terse [0-9]' "$work/version" || fail "the version is gone: $(cat "$work/version")"
[ "$(polls GOMP_SPINCOUNT=7)" = 7 ] || fail "GOMP_SPINCOUNT=7 became $(polls GOMP_SPINCOUNT=7)"
[ "$(polls OMP_WAIT_POLICY=passive)" = 0 ] || fail "OMP_WAIT_POLICY=passive became $(polls OMP_WAIT_POLICY=passive)"

works run -p 'The river rises in the' -n 8 --temp 0
cp "$work/out" "$work/first"
OMP_WAIT_POLICY=passive works run -p 'The river rises in the' -n 8 --temp 0
[ -s "$work/out" ] && cmp -s "$work/out" "$work/first" || fail 'the text depends on how threads wait'
refuses 'unknown command "rn"' rn
