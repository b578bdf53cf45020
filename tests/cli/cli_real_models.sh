#!/usr/bin/env bash
# bench/experiments/real_models.py and its page: figures are those that the command prints, nothing is measured twice, what fails says why,
# and results of two commits make no page.
. "$(dirname "$0")/../support/cli.sh"
model=tests/fixtures/models/llama.gguf # context 512: too short for the questions
asked=models/lab-27m-q8_0.gguf
runs=$work/runs
small="-c 256 --chunks 1 --questions 256 -t 1 --cpu-jobs 1 --windows 1"
cat "$text" "$text" >"$work/text.raw"

methods=f16,q4_0,cq-2,terse-2,mat-1024

# measure MODEL METHODS STEP ...
measure() {
    local model=$1 methods=$2
    shift 2
    # Word splitting is meant.
    # shellcheck disable=SC2086
    python3 bench/experiments/real_models.py "$@" --terse "$terse" -m "$model" -f "$work/text.raw" --work "$runs" --commit 0123abcd $small \
        --methods "$methods" >"$work/log" 2>&1 || fail "$*: $(cat "$work/log")"
}

# page: makes it.
page() { python3 bench/reports/real_models_report.py "$@" >"$work/out" 2>"$work/err"; }

# result METHOD PART [MODEL]: its file.
result() { echo "$runs/results/0123abcd/${3:-llama}/$1 $2 cpu.json"; }

# field FILE NAME
field() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"; }

measure $model $methods measure
grep -q 'llama cq-2 perplexity cpu: there is no codebook cq-2 of the model: learn it first' "$work/log" || fail "cq-2: $(cat "$work/log")"
grep -q 'llama mat-1024 perplexity cpu: mat-1024 leaves no room' "$work/log" || fail "mat-1024: $(cat "$work/log")"

# The figures are those of the command.
works perplexity -m $model -f "$work/text.raw" -c 256 --chunks 1 --kv f16 --kl-divergence-base "$work/base"
works perplexity -m $model --kv q4_0 --kl-divergence-base "$work/base" --kl-divergence
for pair in 'KLD mean = :kld' 'same top-1 = :same_top' 'PPL / PPL(base) = :ratio'; do
    printed=$(sed -n "s|^${pair%:*}\([-0-9.e]*\).*|\1|p" "$work/out")
    python3 -c 'import sys; sys.exit(abs(float(sys.argv[1]) - float(sys.argv[2])) > 1e-6)' "$printed" "$(field "$(result q4_0 perplexity)" "${pair#*:}")" ||
        fail "${pair#*:}: $printed is printed"
done
[ "$(field "$(result f16 perplexity)" kld)" = 0 ] || fail "f16 differs from itself"

# Replies are those of a session that read the text before.
python3 - "$work/text.raw" "$work/planted" <<'PYTHON'
import sys
sys.path.insert(0, "bench/experiments")
from real_models_questions import FACTS, is_right, planted
text = planted(open(sys.argv[1], encoding="utf-8").read(), 256)
for beginning, answer in FACTS:
    assert text.count(f"{beginning} {answer}.") == 1, (beginning, text)
    assert is_right(answer, f" {answer}, as") and not is_right(answer, f" {answer}s"), answer
open(sys.argv[2], "w", encoding="utf-8").write(text)
PYTHON
measure $asked q4_0 measure
works run -m $asked --kv q4_0 -f "$work/planted" -n 0 --save-state "$work/state"
works run -m $asked --kv q4_0 --state "$work/state" --temp 0 -n 12 -p $'\n\nThe ship Grey Heron was commanded by Captain'
[ "$(field "$(result q4_0 questions-256 lab-27m-q8_0)" replies | python3 -c 'import ast; print(ast.literal_eval(input())[3], end="")')" = "$(cat "$work/out")" ] ||
    fail "the reply is $(cat "$work/out")"

# Another run learns what is missing, measures that, and leaves alone what is there.
sed -i 's/"kld": [^,]*/"kld": 0.125/' "$(result q4_0 perplexity)"
measure $model $methods learn measure
[ "$(field "$(result q4_0 perplexity)" kld)" = 0.125 ] || fail "what was there was measured again"
field "$runs/codebooks/llama/cq-2.json" learned | grep -q '^learned from 512 tokens' || fail "$(cat "$runs/codebooks/llama/cq-2.json")"
[ "$(field "$(result cq-2 perplexity)" failed 2>/dev/null || echo none)" = none ] || fail "cq-2 was not measured: $(cat "$work/log")"

# The page has them, and the README's table.
printf '# x\n\n## Methods\n\nText.\n\n| old |\n|---|\n| row |\n\nAfter.\n' >"$work/README.md"
page "$runs/results" "$work/page.md" "$work/README.md" || fail "$(cat "$work/err")"
grep -q 'from commit 0123abcd' "$work/page.md" || fail "no commit: $(cat "$work/page.md")"
grep -q '^| q4_0 | CPU | .* | 0.1250* ± ' "$work/page.md" || fail "no q4_0: $(cat "$work/page.md")"
grep -q '^| terse-2 | CPU |' "$work/page.md" || fail "no terse-2: $(cat "$work/page.md")"
grep -q 'questions at 256): [0-9]* tokens do not fit the context of 512' "$work/page.md" || fail "no failed questions: $(cat "$work/page.md")"
grep -q '^- mat-1024 (perplexity): mat-1024 leaves no room' "$work/page.md" || fail "no mat-1024: $(cat "$work/page.md")"
grep -q '^| `q4_0` | .* | 0.125 | ' "$work/README.md" || fail "README: $(cat "$work/README.md")"
grep -q '^After\.$' "$work/README.md" && ! grep -q 'old' "$work/README.md" || fail "README: $(cat "$work/README.md")"

# A GPU that is asked for and cannot be used is an error: nothing runs on the processor instead.
status=0
TERSE_PLUGIN_PATH=$work python3 bench/experiments/real_models.py measure --terse "$terse" -m $model -f "$work/text.raw" --work "$work/no-gpu" --commit 1 \
    --devices cuda,cpu >"$work/out" 2>"$work/err" || status=$?
[ "$status" -eq 1 ] && grep -q '^real_models.py: .*libterse-cuda' "$work/err" || fail "no GPU: $status, $(cat "$work/err")"
nothing=$(find "$work/no-gpu" -name '*.json')
[ -z "$nothing" ] || fail "measured without a GPU: $nothing"

# Two commits, or none that has a name, are refused, and the page stays.
cp "$work/page.md" "$work/before.md"
mkdir -p "$runs/results/4567/llama"
sed 's/0123abcd/4567/' "$(result q4_0 perplexity)" >"$runs/results/4567/llama/q4_0 perplexity cpu.json"
! page "$runs/results" "$work/page.md" || fail "two commits made a page"
grep -q 'more than one commit: 0123abcd; 4567' "$work/err" || fail "$(cat "$work/err")"
sed -i 's/"4567"/"4567+"/' "$runs/results/4567/llama/q4_0 perplexity cpu.json"
! page "$runs/results/4567" "$work/page.md" || fail "changed files made a page"
grep -q 'commit first, then measure' "$work/err" || fail "$(cat "$work/err")"
cmp -s "$work/page.md" "$work/before.md" || fail "a refusal changed the page"
