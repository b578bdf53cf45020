# Sourced by tests/cli/cli_*.sh, which ctest runs from the repository root with the path of the command as $1. Gives them $terse, a
# folder $work that goes away at the end, and the checks below; the first one that fails ends the script.
set -euo pipefail
terse=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache # the codebooks of the user who runs the tests are not used
export OMP_WAIT_POLICY=passive    # tests run side by side: waiting threads that poll would take the others' processors
text=tests/fixtures/wiki_excerpt.txt

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# Takes the lines of progress, which come when the machine is slow, out of $work/err.
drop_progress() { sed -i '/^[a-z ]*: [0-9]*%, [0-9]* s left$/d' "$work/err"; }

# Runs the command; stdout and stderr (but for progress) go to $work/out and $work/err, the exit status to $status.
run() {
    status=0
    "$terse" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    drop_progress
}

# refuses PATTERN ARGUMENTS: exit 1, one line on stderr that has the pattern, nothing on stdout.
refuses() {
    local pattern=$1
    shift
    run "$@"
    [ "$status" -eq 1 ] || fail "terse $*: exit $status instead of 1: $(cat "$work/err")"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "terse $*: more or less than one line: $(cat "$work/err")"
    grep -q -- "$pattern" "$work/err" || fail "terse $*: no \"$pattern\" in: $(cat "$work/err")"
    [ ! -s "$work/out" ] || fail "terse $*: results after a refusal: $(cat "$work/out")"
}

# works ARGUMENTS: exit 0.
works() {
    run "$@"
    [ "$status" -eq 0 ] || fail "terse $*: exit $status: $(cat "$work/err")"
}

# interrupts ARGUMENTS: SIGINT as soon as there is output, or progress at a terminal, ends the command with exit 130, long before its work would be done.
interrupts() {
    status=0
    python3 "$(dirname "${BASH_SOURCE[0]}")/interrupt.py" "$work/out" "$work/err" "$terse" "$@" || status=$?
    [ "$status" -eq 130 ] || fail "terse $*: exit $status after an interrupt: $(cat "$work/err")"
}

# The number that follows the extended regular expression in FILE, in the last line that has it: number_after '^PPL = ' FILE
number_after() {
    awk -v pattern="$1" 'match($0, pattern) { rest = substr($0, RSTART + RLENGTH)
        if (match(rest, /^[-+0-9.e]+/)) found = substr(rest, 1, RLENGTH) } END { print found }' "$2"
}

# near A B TOLERANCE: |A/B - 1| <= TOLERANCE
near() { awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a / b - 1; exit !(d <= t && d >= -t) }'; }

# json FILE PATH...: the value at a path, by CMake, which every machine that builds terse has; fails when FILE is not JSON.
json() {
    local file=$1
    shift
    cat >"$work/json.cmake" <<END
file(READ "$file" text)
string(JSON value GET "\${text}" $*)
file(WRITE "$work/json.txt" "\${value}")
END
    cmake -P "$work/json.cmake" && cat "$work/json.txt"
}

# Every line of a CSV file has as many fields as its first; prints that number.
csv_fields() {
    awk '{ gsub(/"([^"]|"")*"/, "q"); n = split($0, f, ","); if (NR == 1) first = n; if (n != first) exit 1 } END { print first }' "$1"
}
