#!/usr/bin/env bash
# The manual's pages and the shells' completions have every option of every command, and bash completes by them.
. "$(dirname "$0")/../support/cli.sh"
pages=$work/pages
mkdir "$pages"
works write-pages "$pages"
[ ! -s "$work/out" ] && [ ! -s "$work/err" ] || fail "write-pages says something: $(cat "$work/out" "$work/err")"

# Names of the options that --help shows, and of all rows that the command's source has: those for users of llama.cpp are not shown.
shown() { "$terse" "$1" --help | awk '/^  -/ { for (i = 1; $i ~ /^-[-a-z]/; i++) { sub(/,$/, "", $i); print $i } }'; }
rows() { sed -n 's/^ *{"\(-[^"]*\)",.*/\1/p' "tools/cmd_$1.c" | tr -s ', |' '\n'; }
# part_of FILE COMMAND: the command's case of a shell's function
part_of() { sed -n "/^    $2)\$/,/^        ;;\$/p" "$1"; }

works --help
commands=$(awk '/^  [a-z]+ / && $1 != "terse" { print $1 }' "$work/out")
[ "$(wc -w <<<"$commands")" -eq 8 ] || fail "commands: $commands"
for command in $commands; do
    names=$({ shown "$command"; rows "$command"; } | sort -u)
    [ "$(wc -w <<<"$names")" -ge 7 ] || fail "$command has few options: $names"
    sed 's/\\f[BIR]/ /g; s/\\-/-/g' "$pages/terse-$command.1" >"$work/man"
    part_of "$pages/terse.bash" "$command" >"$work/bash"
    part_of "$pages/_terse" "$command" >"$work/zsh"
    for name in $names; do
        for file in man bash zsh; do
            grep -qE -- "(^|[ ,'|)*])$name([] ,'):[|]|$)" "$work/$file" || fail "$file: $name of terse $command is missing"
        done
    done
    grep -q "^.BR terse.-$command (1)" "$pages/terse.1" || fail "terse.1 does not name terse-$command"
    grep -qF "$("$terse" --help | sed -n "s/^  $command  *//p")" <(sed "s/\\\\-/-/g; s/\\\\(aq/'/g" "$pages/terse-$command.1") || fail "no summary of $command"
done
for name in --mlock --no-auto-calibrate --rope-scale; do # rows that commands share and --help leaves out
    grep -q -- " $name " "$work/bash" && fail "terse calibrate does not take $name"
    part_of "$pages/terse.bash" run | grep -q -- "[ ']$name[ ']" || fail "bash: $name of terse run is missing"
done
if command -v groff >/dev/null; then
    for page in "$pages"/*.1; do
        warnings=$(groff -man -Tutf8 -ww -z "$page" 2>&1)
        [ -z "$warnings" ] || fail "groff: $warnings"
    done
fi
if command -v zsh >/dev/null; then zsh -n "$pages/_terse" || fail "zsh cannot read _terse"; fi

# completes WANTED WORDS...: what bash offers for the last of the words
completes() {
    local wanted=$1 offered
    shift
    offered=$(bash -c 'source "$0" && COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _terse; echo "${COMPREPLY[*]}"' "$pages/terse.bash" "$@")
    [ "$offered" = "$wanted" ] || fail "bash offers \"$offered\" for: $*"
}
bash -c 'source "$0" && complete -p terse' "$pages/terse.bash" | grep -q -- '-F _terse terse$' || fail "bash does not complete by _terse"
completes 'perplexity' terse perp
completes 'compare calibrate' terse c
completes '--chunks' terse perplexity --ch
completes '--temp --temperature' terse --temp # without a command: run
completes 'exact compressed' terse run --prefill ''
completes 'compressed' terse run --prefill = c # readline's words of --prefill=c
completes 'kivi-4 kivi-2' terse perplexity -f text.txt --kv ki
completes '' terse run -f '' # a file: readline's own completion
completes '' terse inspect --temp

refuses 'cannot write .*/none/terse.bash' write-pages "$work/none"
refuses 'unknown command "write-pages"' write-pages
