#!/usr/bin/env bash
# bench/experiments/quality.py and its pages: figures are those that the command and the programs beside it print, nothing is measured twice, what fails says
# why, a program of an unclean commit or of another one is refused, and lines of two commits make no page.
. "$(dirname "$0")/../support/cli.sh"
model=tests/fixtures/models/llama.gguf # context 512: too short for the questions
asked=models/lab-27m-q8_0.gguf
runs=$work/runs
cat "$text" "$text" >"$work/text.raw"

# The command, but for its commit: that of the build need not be clean.
built() { printf '#!/bin/sh\n[ "$1" = --version ] && echo "commit %s" && exit\nexec "%s" "$@"\n' "$1" "$terse" >"$work/terse" && chmod +x "$work/terse"; }
built 0123456789ab
# A program beside the command, in the same way.
beside() {
    printf '#!/usr/bin/env bash\nset -o pipefail\n"%s" "$@" | sed "1s/^commit .*/commit %s/"\n' "$(dirname "$terse")/$1" "$2" >"$work/$1" && chmod +x "$work/$1"
}
beside recall 0123456789ab
beside questions 0123456789ab

# quality PAGE STEP ... [-m MODEL]: by small measurements.
quality() {
    python3 bench/experiments/quality.py "$@" --terse "$work/terse" -f "$work/text.raw" --work "$runs" --docs "$work" -c 256 --chunks 3 --questions 256 \
        -t 1 --jobs 2 --windows 1 >"$work/out" 2>"$work/err"
}
measures() { quality "$@" || fail "$*: $(cat "$work/out" "$work/err")"; }

# page_of PAGE: its text, without the plot that needs matplotlib.
page_of() {
    python3 - "$1" "$runs" >"$work/$1.md" <<'PYTHON' || fail "the page $1"
import importlib, sys
sys.path[:0] = ["bench/experiments", "bench/reports"]
from types import SimpleNamespace
from quality_measurements import Results, Store
page, runs = importlib.import_module("page_" + sys.argv[1]), sys.argv[2]
options = SimpleNamespace(model_names=["llama"], context=256, chunks=3, windows=1, questions=[256], encoder_steps=1500)
print(page.write(Results(Store(runs), page.measurements(options)), options))
PYTHON
}

# field NAME KIND ARGUMENTS [MODEL]: of the last line of a measurement.
field() {
    python3 - "$runs/measurements.jsonl" "$@" <<'PYTHON'
import json, sys
path, name, kind, arguments = sys.argv[1:5]
model = sys.argv[5] if len(sys.argv) > 5 else "llama"
lines = [json.loads(line) for line in open(path)]
found = [line for line in lines if (line["kind"], line["model"]) == (kind, model) and " ".join(line["arguments"]) == arguments]
print(found[-1].get(name))
PYTHON
}

chosen='kv f16|kv q4_0|kv cq-2 \(|kv terse-2 --codebook|mat-1024|learned \(cq-2 1'
measures real-models run -m $model --only "$chosen"
field failed perplexity '--kv mat-1024' | grep -q '^mat-1024 leaves no room' || fail "mat-1024: $(cat "$work/out")"
[ "$(field commit perplexity '--kv q4_0')" = 0123456789ab ] || fail "the commit: $(field commit perplexity '--kv q4_0')"
[ "$(field learned learned '')" = "['512', 'WikiText validation']" ] || fail "learned: $(field learned learned '')"

# The figures are those of the command.
works perplexity -m $model -f "$work/text.raw" -c 256 --chunks 3 --kv f16 --kl-divergence-base "$work/base"
works perplexity -m $model --kv q4_0 --kl-divergence-base "$work/base" --kl-divergence
for pair in 'KLD mean = :kld' 'same top-1 = :same_top' 'PPL / PPL(base) = :ratio'; do
    printed=$(sed -n "s|^${pair%:*}\([-0-9.e]*\).*|\1|p" "$work/out")
    python3 -c 'import sys; sys.exit(abs(float(sys.argv[1]) - float(sys.argv[2])) > 1e-6)' "$printed" "$(field "${pair#*:}" perplexity '--kv q4_0')" ||
        fail "${pair#*:}: $printed is printed"
done
[ "$(field kld perplexity '--kv f16')" = 0 ] || fail "f16 differs from itself"

# Replies are those of a session that read the text before.
python3 - "$work/text.raw" "$work/planted" <<'PYTHON'
import sys
sys.path.insert(0, "bench/experiments")
from planted_facts import FACTS, is_right, planted
text = planted(open(sys.argv[1], encoding="utf-8").read(), 256)
for beginning, answer in FACTS:
    assert text.count(f"{beginning} {answer}.") == 1, (beginning, text)
    assert is_right(answer, f" {answer}, as") and not is_right(answer, f" {answer}s"), answer
open(sys.argv[2], "w", encoding="utf-8").write(text)
PYTHON
measures real-models run -m $asked --only 'questions --kv q4_0'
works run -m $asked --kv q4_0 -f "$work/planted" -n 0 --save-state "$work/state"
works run -m $asked --kv q4_0 --state "$work/state" --temp 0 -n 12 -p $'\n\nThe ship Grey Heron was commanded by Captain'
[ "$(field replies questions '--kv q4_0' lab-27m-q8_0 | python3 -c 'import ast; print(ast.literal_eval(input())[3], end="")')" = "$(cat "$work/out")" ] ||
    fail "the reply is $(cat "$work/out")"

# Another run leaves alone what is there, and tries again what failed.
sed -i 's/\("kld": \)[-0-9.e]*[0-9]/\10.125/' "$runs/measurements.jsonl"
lines=$(wc -l <"$runs/measurements.jsonl")
failed=$(grep -c '"failed"' "$runs/measurements.jsonl")
measures real-models run -m $model --only "$chosen"
[ "$(field kld perplexity '--kv q4_0')" = 0.125 ] || fail "what was there was measured again"
[ "$(wc -l <"$runs/measurements.jsonl")" -eq $((lines + failed)) ] || fail "$lines lines, $failed of failures, and then $(wc -l <"$runs/measurements.jsonl")"

# The page has them.
measures real-models list -m $model --only "$chosen"
python3 - "$work" "$runs" "$chosen" <<'PYTHON' || fail "the page of real models"
import sys
sys.path[:0] = ["bench/experiments", "bench/reports"]
from types import SimpleNamespace
from quality_measurements import Results, Store
import page_real_models as page
work, runs, chosen = sys.argv[1:]
open(work + "/README.md", "w").write("# x\n\n## Methods\n\nText.\n\n| old |\n|---|\n| row |\n\nAfter.\n")
options = SimpleNamespace(model_names=["llama"], context=256, chunks=3, windows=1, questions=[256], readme=work + "/README.md")
text = page.write(Results(Store(runs), page.measurements(options)), options)
readme = open(options.readme).read()
assert "from commit 0123456789ab" in " ".join(text.split()), text
assert "| q4_0 | CPU | " in text and "| 0.1250" in text, text
assert "questions at 256): " in text and "tokens do not fit the context of 512" in text, text
assert "mat-1024 (perplexity): mat-1024 leaves no room" in text, text
assert "not run yet" in text
assert "| `q4_0` | " in readme and "| 0.125 | " in readme and "\nAfter.\n" in readme and "old" not in readme, readme
PYTHON

# Rows compare in pairs: an ingredient that matters is found to matter, and one form with itself is undecided.
measures equal-terms run report -m $model --only 'kv kivi-2|kv f16'
grep -q '^| terse | .* | better |\|^| terse | ' "$work/equal-terms.md" || fail "$(cat "$work/equal-terms.md")"
grep -q 'Commit 0123456789ab' "$work/equal-terms.md" || fail "a table without its commit"
python3 - <<'PYTHON' || fail "differences"
import sys
sys.path[:0] = ["bench/experiments", "bench/reports"]
from page_common import Difference
line = lambda values: {"blocks": {"kld": values}}  # noqa: E731
a, b = line([1.0, 2.0, 3.0, 4.0, 5.0]), line([2.0, 3.1, 3.9, 5.0, 6.2])
d = Difference(a, b)
assert abs(d.mean + 1.04) < 1e-12 and abs(d.half - 2.776 * (0.013 / 5) ** 0.5) < 2e-3, (d.mean, d.half)  # t of 4 degrees of freedom
assert d.verdict() == "better" and Difference(b, a).verdict() == "worse" and Difference(a, line([2.0, 1.0, 3.0, 5.0, 4.0])).verdict() == "undecided"
PYTHON

# What a cache writes itself is measured as the command says it, and a text that changes has as much of each kind by turns.
measures free-running run -m $model --only 'kv (f16|q4_0)'
works perplexity -m $model -f "$work/text.raw" -c 256 --chunks 3 --kv q4_0 --free-running 128
for pair in 'free-running KLD = :free' 'PPL(written) / expected = :expected' 'same greedy prefix = :prefix'; do
    printed=$(sed -n "s|^${pair%:*}\([-0-9.e]*\).*|\1|p" "$work/out")
    python3 -c 'import sys; sys.exit(abs(float(sys.argv[1]) - float(sys.argv[2])) > 1e-6)' "$printed" "$(field "${pair#*:}" free_running '--kv q4_0')" ||
        fail "${pair#*:}: $printed is printed"
done
page_of free_running
grep -q '^| f16 | .* | 0 | 0 | .* | 100.0 | 128 |$' "$work/free_running.md" || fail "$(cat "$work/free_running.md")"
grep -q '^Errors add up' "$work/free_running.md" || fail "no verdict: $(cat "$work/free_running.md")"
measures other-texts run -m $model --only 'kv (f16|q4_0) on (prose|code) 256'
page_of other_texts
grep -q '^| q4_0 | [0-9.]* | [-0-9.]* ± [0-9.]* | [0-9.]* | [-0-9.]* ± ' "$work/other_texts.md" || fail "$(cat "$work/other_texts.md")"
python3 - "$work" <<'PYTHON' || fail "texts by turns"
import sys
sys.path.insert(0, "bench/experiments")
from quality_texts import TURN, write_by_turns
paths = [f"{sys.argv[1]}/{name}" for name in ("a", "b", "turns")]
for path, text in zip(paths, ("a" * (2 * TURN + 9), "b" * (3 * TURN))):
    open(path, "w").write(text)
write_by_turns(paths[:2], paths[2])
assert open(paths[2]).read() == ("a" * TURN + "b" * TURN) * 2
PYTHON

# Where anchors lie is read from saved states.
works run -m $asked --kv q4_0 --anchors 10 --kv-tail-tokens 0 -f "$work/planted" -n 0 --save-state "$work/state"
python3 - "$work/state" <<'PYTHON' || fail "anchors of a state"
import sys
sys.path.insert(0, "bench/experiments")
from state_anchors import anchors_of
found = anchors_of(sys.argv[1])
assert found["of_each"] == 10 and len(found["heads"]) % 12 == 0, found
assert all(0 <= share <= 1 for head in found["heads"] for share in head)
PYTHON

# A GPU that is asked for and cannot be used is an error: nothing runs on the processor instead.
! TERSE_PLUGIN_PATH=$work quality real-models run -m $model --devices cuda,cpu --work "$work/no-gpu" || fail "no GPU is no error"
grep -q '^quality.py: .*libterse-cuda' "$work/err" || fail "no GPU: $(cat "$work/err")"

# Rows of two protocols, caches of chosen tokens and recall stand on the page of fidelity; the programs beside the command must be of its commit.
python3 - <<'PYTHON' || fail "pages share no rows"
import sys
sys.path[:0] = ["bench/experiments", "bench/reports"]
from types import SimpleNamespace
import page_anchors, page_equal_terms, page_fidelity, page_real_models
options = SimpleNamespace(model_names=["a", "b"], context=8192, chunks=1, windows=8, questions=[2048])
lists = [set(page.measurements(options)) for page in (page_real_models, page_equal_terms, page_anchors)]
asked = page_fidelity.measurements(options)
own = [m for m in set(asked) - set.union(*lists) if m.model == "a"]
assert len(own) <= 60, len(own)
for of_page in lists:
    assert len(of_page & set(asked)) >= 4, "a page that shares nothing"
named = {row[0] for row in page_fidelity.CHOICES} | set(page_fidelity.METHODS)
assert all(whole is None or whole in named for *_, whole in page_fidelity.CHOICES)
assert all(a in named and b in named for _, a, b in (*page_fidelity.DIRECTIONS, *page_fidelity.CHOICE_DIRECTIONS))
PYTHON
asked_of_fidelity='kv f16|kv q4_0 (--paper )?on|kv (kivi-2|quest|selfindex)|recall'
rm "$work/recall"
measures fidelity run -m $model --only "$asked_of_fidelity"
field failed recall '' | grep -q '^there is no recall beside the command' || fail "no recall: $(field failed recall '')"
beside recall ba9876543210
measures fidelity run -m $model --only "$asked_of_fidelity"
field failed recall '' | grep -q '^recall is of commit ba9876543210, terse of 0123456789ab' || fail "another recall: $(field failed recall '')"
beside recall 0123456789ab
measures fidelity run -m $model --only "$asked_of_fidelity"
page_of fidelity
works perplexity -m $model --kv q4_0 --paper --kl-divergence-base "$work/base" --kl-divergence
in_paper=$(sed -n 's/^same top-1 = \([0-9.]*\).*/\1/p' "$work/out")
python3 - "$work/fidelity.md" "$runs" "$in_paper" <<'PYTHON' || fail "the page of fidelity"
import json, re, sys
text = open(sys.argv[1]).read()
rows = {cells[0]: cells[1:] for line in text.split("\n") if line.startswith("| ") for cells in [[c.strip() for c in line.strip("|").split("|")]]}
assert "from commit 0123456789ab" in " ".join(text.split()), text
assert rows["q4_0"][4] != "" and abs(float(rows["q4_0"][9]) - float(sys.argv[3])) < 0.06, rows["q4_0"]
assert rows["kivi-2 by its signs"][0] == "7.5 % and 64" and rows["selfindex-2"][3], rows
assert rows["the true best"][0].startswith("100.0 (") and "k-means in place of one pass 0." in " ".join(text.split()), text
assert "not run yet" in text
PYTHON

# The page of CommVQ, whose programs would take minutes: what they print is written here.
cat >"$work/value_codes" <<'SHELL'
#!/bin/sh
echo "commit 0123456789ab
2 heads, 2048 tokens to learn from, 3 queries, avx512 kernels; times are of one run, in parts of gain-shape's
encoding         bits    plain weighted attention      encode us          read ns"
for bits in 1 2; do
    echo "kivi-$bits          $bits.000   2.0283   2.0140    0.8326    0.00   0.00      nan     nan
gain-shape      $bits.062   0.2810   0.2403    0.1200    0.52   1.00     4.39    1.00
additive        $bits.062   0.1621   0.1423    0.0600    2.54   4.93     2.63    0.60
  beam          $bits.062   0.1622   0.1410    0.0300   54.74 106.14      nan     nan
encoder         $bits.576   0.8866   0.8723    0.7200    1.70   3.29      nan     nan
  its C         $bits.062   0.4607   0.4576    0.2899    2.03   3.94      nan     nan"
done
SHELL
cat >"$work/commvq_tables" <<'SHELL'
#!/bin/sh
echo 'commit 0123456789ab
{"heads": [1, 3], "samples": 2048, "test_samples": 8192, "fits": [
{"pairs": 8, "entries": 2, "learned": [[0.5, 0.4], [0.6, 0.5]], "held_out": [[0.55, 0.45], [0.65, 0.55]], "seconds": [[1], [2]]},
{"pairs": 16, "entries": 4, "learned": [[0.4, 0.2], [0.5, 0.3]], "held_out": [[0.45, 0.25], [0.70, 0.35]], "seconds": [[1], [2]]},
{"pairs": 64, "entries": 64}]}'
SHELL
cat >"$work/bench_commvq" <<'SHELL'
#!/bin/sh
echo 'commit 0123456789ab
attention of one layer, one token, processor time of 2 threads, avx512 kernels
                                                                         milliseconds   times as long as shipped
shape              method     tokens   shipped    tables   decoded    summed       f16   tables  decoded   summed      f16
1B: 32 x 8 x 64    commvq-1     8192     0.750     6.000     6.750    12.000     0.375     8.00     9.00    16.00     0.50
8B: 32 x 8 x 128   commvq-1     8192     2.000    28.000    24.000    42.000     0.500    14.00    12.00    21.00     0.25'
SHELL
chmod +x "$work/value_codes" "$work/commvq_tables" "$work/bench_commvq"
measures commvq run -m $model
page_of commvq
python3 - "$work/commvq.md" <<'PYTHON' || fail "the page of CommVQ: $(cat "$work/commvq.md")"
import sys
text = open(sys.argv[1]).read()
plain = " ".join(text.split())
assert "| additive, the shipped search | 2.06 | 0.162 | 0.142 | 0.0600 | 4.93 | 0.60 |" in text
assert "1 bit: the shipped search leaves 0.50 times gain-shape's error of attention, a beam of 8 0.50 times the search's, the encoder 12.00 times." in plain
assert "| 16 | 4 | 1 | 0.125 | 0.450 | 0.575 | undecided (1 of 2 heads) |" in text
assert "in 2 of 2 heads, from 0.575 to 0.300" in plain and "tables learned from 2,048 keys" in plain
assert "| 8,192 | 8.0 to 14.0 | 9.0 to 12.0 | 16.0 to 21.0 | 2.0 to 4.0 |" in text and "1.5 to 2.0 times as long as the paper's" in plain
PYTHON

# Another commit measures anew; two make no page, unless one is named; and changed files none at all.
cp "$work/equal-terms.md" "$work/before.md"
built ba9876543210
measures equal-terms run -m $model --only 'kv kivi-2 --kv-first-tokens 0 on'
[ "$(field commit perplexity '--kv kivi-2 --kv-first-tokens 0')" = ba9876543210 ] || fail "another commit was not measured"
! quality equal-terms report -m $model --only 'kv kivi-2|kv f16' || fail "two commits made a page"
grep -q 'several commits, 0123456789ab, ba9876543210' "$work/err" || fail "$(cat "$work/err")"
cmp -s "$work/equal-terms.md" "$work/before.md" || fail "a refusal changed the page"
measures equal-terms report -m $model --only 'kv kivi-2|kv f16' --commit 0123456789ab
cmp "$work/equal-terms.md" "$work/before.md" || fail "the page of a commit that was named is another one"
for commit in ba9876543210-dirty unknown; do
    built $commit
    ! quality equal-terms run -m $model || fail "$commit was measured"
    grep -q "was built of $commit" "$work/err" || fail "$commit: $(cat "$work/err")"
done

# Nor is a program that would load another build's library.
program=$(readlink -f "$terse")
library=$(ldd "$program" | sed -n 's/.*libterse\.so\S* => \(\S*\).*/\1/p')
if [ -n "$library" ]; then
    mkdir "$work/other"
    cp "$library" "$work/other/"
    ! LD_LIBRARY_PATH=$work/other python3 bench/experiments/quality.py equal-terms run -m $model --terse "$program" -f "$work/text.raw" --work "$runs" \
        >"$work/out" 2>"$work/err" || fail "a program with another library was measured"
    grep -q "would load $work/other" "$work/err" || fail "another library: $(cat "$work/err")"
fi
