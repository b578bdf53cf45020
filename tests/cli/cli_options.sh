#!/usr/bin/env bash
# Options: what is wrong with one is said in one line, nothing is run, and --help is there for each command.
. "$(dirname "$0")/../support/cli.sh"

refuses 'no command given'
refuses 'unknown command "walk"' walk
for command in run serve perplexity compare tune bench inspect calibrate; do
    works "$command" --help
    grep -q "^usage: terse $command" "$work/out" || fail "$command --help does not say its usage"
    [ ! -s "$work/err" ] || fail "$command --help writes to stderr"
    [ "$(wc -l <"$work/out")" -le 48 ] || fail "$command --help does not fit a screen"
    awk 'length > 132 { exit 1 }' "$work/out" || fail "$command --help has a line that does not fit a screen"
    refuses "^terse $command: unknown option --no-such-option; see --help" "$command" --no-such-option
done
# The help names what the refusals of an unknown type or policy name.
works run --help
grep -q -- '-ctk.*or terse-N' "$work/out" || fail "the help of -ctk leaves out terse-N"
grep -q -- '--evict.*snapkv-N' "$work/out" || fail "the help of --evict leaves out snapkv-N"
for version in --version version; do
    works $version
    grep -q '^terse [0-9]*\.[0-9]*\.[0-9]* (' "$work/out" || fail "$version: $(cat "$work/out")"
    grep -qE '^commit ([0-9a-f]{12}(-dirty)?|unknown)$' "$work/out" || fail "$version names no commit: $(cat "$work/out")"
    grep -q '^backends: cpu' "$work/out" || fail "$version names no backend: $(cat "$work/out")"
done
TERSE_CPU=scalar works --version
grep -q '^terse .* (kernels for scalar)$' "$work/out" || fail "TERSE_CPU=scalar: $(cat "$work/out")"
works --help
cp "$work/out" "$work/help"
works help
cmp "$work/out" "$work/help" || fail "help is not --help"
works -p x -n 1 --kv f16 # without a command: run
refuses 'terse run: unknown option --temperatures; did you mean --temp? See --help' run -p x --temperatures 0
refuses 'unknown option --n-prdict; did you mean --n-predict?' run -p x --n-prdict 4
for size in 4G 4GB 4GiB; do works run -p x -n 1 --kv f16 --kv-budget $size; done
refuses '--kv-budget takes a size such as 512M or 4G' run -p x --kv-budget 4Gb

refuses '-p needs a value: -p TEXT' run -p
refuses '-p needs a value' run -p -n 4
refuses '-n takes a whole number from -2 to 2147483647, not "four"' run -p x -n four
refuses '-n takes a whole number' run -p x -n 4x
refuses '-n takes a whole number' run -p x -n -3
refuses '-n takes a whole number' run -p x -n 99999999999999999999
refuses '-n takes a whole number' run -p x -n ''
refuses '-t takes a whole number from -1 to 1024' run -p x -t 100000
refuses '--temp takes a number from 0 to 100, not "nan"' run -p x --temp nan
refuses '--top-p takes a number from 0 to 1, not "1.5"' run -p x --top-p 1.5
refuses '--min-p takes a number' run -p x --min-p -0.1
refuses '--prefill takes one of exact|compressed, not "quick"' run -p x --prefill quick
refuses 'unexpected argument "word"' run -p x word
refuses 'nothing to read' run
refuses 'exclude each other' run --chat -cnv -p x
refuses '--chat-template is for' run -p x --chat-template chatml
refuses "unknown KV method 'f17': use one of f16" run -p x --kv f17
refuses "streaming" run -p x --kv streaming-0
refuses 'mat-8 keeps too few tokens: use mat-16' run -p x --kv mat-8
refuses '64 anchors leave mat-64 no recent tokens' run -p x --kv mat-64 --mat-anchors 64
refuses 'snapkv-20 keeps too few tokens' run -p x --kv snapkv-20
# A compressed prefill has no attention over the whole prompt to choose tokens by.
refuses 'snapkv-128 chooses tokens of a prompt .*: omit --prefill compressed$' run -p x --kv snapkv-128 --prefill compressed
refuses 'selfindex-2 chooses tokens of a prompt .*keep none with --anchors 0' run -p x --kv selfindex-2 --prefill compressed
refuses 'q4_0 chooses tokens of a prompt' run -p x --kv q4_0 --anchors 1% --prefill compressed
works run -p x -n 1 --kv selfindex-2 --anchors 0 --prefill compressed
works run -p x -n 1 --kv q4_0 --prefill compressed
refuses 'quest-0 cannot read 0 %' run -p x --kv quest-0
refuses 'reads every token that it keeps: omit --top-k-tokens' run -p x --kv mat-64 --top-k-tokens 5%
refuses "'q4_0' is no way to evict tokens: use mat-N" run -p x --kv f16 --evict q4_0
refuses 'evicts tokens itself: omit --evict' run -p x --kv mat-64 --evict mat-32
# Fewer tokens than stay exact: codes that never come are worth a line.
for kv in 'q4_0 --evict streaming-64:1' 'q4_0 --evict streaming-512:0' 'q4_0 --evict streaming-160:1' \
    'q4_0 --evict streaming-160 --kv-tail-tokens 0:0' 'f16 --evict streaming-64:0' 'q4_0:0'; do
    # Word splitting is meant.
    works run -p x -n 1 --kv ${kv%:*}
    [ "$(grep -c 'nothing is compressed, as all of the [0-9]* tokens' "$work/err")" -eq "${kv#*:}" ] || fail "--kv $kv: $(cat "$work/err")"
done
for arguments in "perplexity -f $text -c 256 --chunks 1" 'bench -p 4 -n 0 -r 1 -d 256'; do
    works $arguments --kv q4_0 --evict streaming-64
    grep -q 'nothing is compressed' "$work/err" || fail "$arguments: $(cat "$work/err")"
done
refuses '--top-k-tokens takes a part such as 1%' run -p x --top-k-tokens 120%
refuses 'keeps no anchors: omit --anchors' run -p x --kv mat-64 --anchors 3
refuses "unknown key type 'f17'" run -p x -ctk f17
refuses "unknown value type 'f17'" run -p x -ctv f17
refuses 'no such chat format' run --chat -p x --chat-template no-such-format
refuses 'none.template' run --chat -p x --chat-template-file "$0.none.template"
refuses 'give one of them' run --chat -p x --chat-template chatml --chat-template-file "$0"
refuses 'give one of them' serve --chat-template chatml --chat-template-file "$0"
refuses '--chat-template-file is for' run -p x --chat-template-file "$0"

refuses 'no text: give -f FILE' perplexity
refuses 'add --kl-divergence-base FILE' perplexity --kl-divergence
refuses 'at least 8 tokens' perplexity -f "$text" -c 7
refuses '--ubatch takes a whole number from 1' perplexity -f "$text" --ubatch 0
refuses '--paper and --prefill exclude each other' perplexity -f "$text" --paper --prefill compressed
refuses 'too few for a window of 30000' perplexity -f "$text" -c 30000

refuses 'nothing to measure' bench -p 0 -n 0
refuses '-d takes whole numbers with commas between them, not "0,x"' bench -d 0,x
refuses '-d takes whole numbers' bench -d 0,,1
refuses '-d takes whole numbers' bench -d ''
refuses 'add -f FILE' bench --fill text
refuses '-f is the text of --fill text' bench -f "$text"
refuses '-r takes a whole number from 1' bench -r 0
refuses 'together are 100000512 tokens, and the model was trained for 32768: use smaller ones, or add --allow-longer-context' bench -d 100000000
refuses 'KiB for a KV cache of 2 tokens do not fit .*: 0.56 of its 1.00 KiB are taken' run -p x --kv f16 --kv-budget 1K
refuses '-o takes one of md|json|csv, not "xml"' bench -o xml
refuses 'unknown KV method' bench -p 0 -n 1 -r 1 --kv nothing

refuses '--budget takes a size such as 512M or 4G' inspect --budget much
refuses '--budget takes a size' inspect --budget 4X
refuses '--budget takes a size' inspect --budget -1G
refuses 'unexpected argument' inspect models/lab-27m-q8_0.gguf models/lab-27m-q8_0.gguf

TERSE_CPU=sse refuses "TERSE_CPU" run -p x
