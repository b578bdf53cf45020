#!/usr/bin/env bash
# terse tune: its table, its plot and its pick agree; the pick is what the other commands take; time, budget and Ctrl-C bound it.
. "$(dirname "$0")/../support/cli.sh"
tune=(tune -f "$text" -c 512 --kv terse-1,q8_0,kivi-2)

# value METHOD KEY: of the method's row in $work/rows.csv
value() {
    awk -F, -v kv="$1" -v key="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == key) column = i } $1 == kv { print $column }' "$work/rows.csv"
}

works "${tune[@]}" --plot "$work/front.svg"
kept=$(sed -n 's/^kept: \([^:]*\): terse run, terse serve and kv="auto" of Python take terse-1 for this model$/\1/p' "$work/err")
[ -s "$kept" ] || fail "the pick is not kept: $(cat "$work/err")"
[ "$(json "$kept" method)" = terse-1 ] || fail "kept: $(cat "$kept")"
grep -q '^lab-27m, Q8_0, on cpu, .*; a cache of 512 tokens; divergence over 510 positions of wiki_excerpt.txt$' "$work/out" || fail "head: $(cat "$work/out")"
[ "$(grep -c '^| [a-z]' "$work/out")" -eq 4 ] || fail "rows: $(cat "$work/out")"
grep -q '^| terse-1 .* pick ' "$work/out" || fail "no pick in the table: $(cat "$work/out")"
grep -q '^| q8_0 .* front ' "$work/out" || fail "q8_0 is not on the front: $(cat "$work/out")"
grep -q '^Pick: terse-1: [0-9.]* bits per value, [0-9.]* MiB, divergence 0.00[0-9]* from f16, [0-9.]*x its speed; no smaller one was measured.$' "$work/out" ||
    fail "no sentence: $(cat "$work/out")"
if command -v xmllint >/dev/null; then xmllint --noout "$work/front.svg" || fail "the plot is no XML"; fi
python3 - "$work/front.svg" <<'END' || fail "the plot: $(cat "$work/front.svg")"
import sys, xml.etree.ElementTree as tree
svg = "{http://www.w3.org/2000/svg}"
root = tree.parse(sys.argv[1]).getroot()
points = root.findall(svg + "circle")
names = [text.text.split(",")[0] for text in root.iter(svg + "text")]
width, height = float(root.get("width")), float(root.get("height"))
inside = all(0 < float(p.get("cx")) < width and 0 < float(p.get("cy")) < height for p in points)
front = root.find(svg + "polyline").get("points").split()
sys.exit(not (len(points) == 3 and inside and len(front) == 2 and {"terse-1", "q8_0", "kivi-2"} <= set(names) and "f16" not in names))
END

# The figures are those of terse perplexity on the same windows, and the bytes are the cache's.
if "$terse" "${tune[@]}" -o csv --plot "$work/front.png" >"$work/out" 2>"$work/err"; then
    python3 - "$work/front.png" <<'END' || fail "no PNG of 1520 x 960: $(head -c 64 "$work/front.png" | od -c)"
import struct, sys
data = open(sys.argv[1], "rb").read()
size = struct.unpack(">II", data[16:24])
sys.exit(not (data[:8] == b"\x89PNG\r\n\x1a\n" and size == (1520, 960) and len(data) > 8000 and data[-8:-4] == b"IEND"))
END
else
    grep -q 'PNG takes librsvg' "$work/err" || fail "PNG: $(cat "$work/err")"
    works "${tune[@]}" -o csv
fi
cp "$work/out" "$work/rows.csv"
[ "$(csv_fields "$work/rows.csv")" -eq 10 ] || fail "CSV: $(cat "$work/rows.csv")"
works perplexity -f "$text" -c 512 --chunks 2 --kl-divergence-base "$work/base"
for method in terse-1 q8_0 kivi-2; do
    works perplexity --kl-divergence-base "$work/base" --kl-divergence --kv $method
    near "$(value $method divergence)" "$(number_after '^KLD mean = ' "$work/out")" 2e-3 || fail "$method: $(cat "$work/out" "$work/rows.csv")"
done
[ "$(value f16 divergence)" = 0.00000000 ] || fail "f16 differs from itself: $(cat "$work/rows.csv")"
[ "$(value f16 bytes)" -ge $((2 * 2 * 12 * 2 * 128 * 512)) ] || fail "bytes of f16: $(cat "$work/rows.csv")"

# What was kept is what the others take, where no method is named and the bytes allow it.
works run -p 'It was' -n 1 -c 512
grep -q '^KV cache terse-1: terse tune picked it for this model: [0-9.]* bits per value at 512 tokens, KL divergence ' "$work/err" || fail "run: $(cat "$work/err")"
[ "$(wc -l <"$work/err")" -eq 2 ] || fail "run: more than one line: $(cat "$work/err")"
works perplexity -f "$text" -c 256 --chunks 1 --kv auto
grep -q '(terse-1)' "$work/out" || fail "perplexity: $(cat "$work/out")"
works run -p 'It was' -n 1 --kv q4_0
grep -q '(q4_0)$' "$work/err" || fail "a named method: $(cat "$work/err")"
works run -p 'It was' -n 1 --kv auto:0.02
grep -q '^KV cache terse-4: whether fewer bits do as well was not measured' "$work/err" || fail "a named divergence: $(cat "$work/err")"
sed -i 's/"terse-1"/"f17"/' "$kept"
works run -p 'It was' -n 1
grep -q "^KV cache terse-4: .*; the tuned f17 is not used: unknown KV method 'f17'" "$work/err" || fail "an unknown one: $(cat "$work/err")"
echo '{' >"$kept"
works run -p 'It was' -n 1
grep -q '^KV cache terse-4: .*tuned-[0-9a-f]*.json is no file of a tuned method, and is not used' "$work/err" || fail "a damaged one: $(cat "$work/err")"
rm "$kept"

# A budget leaves out what takes more, and it is kept with the pick.
budget=$(($(value q8_0 bytes) - 1))
works tune -f "$text" -c 512 --kv terse-1,q8_0 --budget $budget -o json
grep -q '^without q8_0: it takes [0-9.]* MiB$' "$work/err" || fail "budget: $(cat "$work/err")"
[ "$(json "$work/out" pick)" = terse-1 ] && [ "$(json "$work/out" positions)" = 510 ] && [ "$(json "$work/out" budget)" = $budget ] || fail "JSON: $(cat "$work/out")"
[ "$(json "$work/out" rows 0 choice)" = 'over the budget' ] || fail "f16 is not over the budget: $(cat "$work/out")"
[ "$(json "$kept" budget)" = $budget ] || fail "kept: $(cat "$kept")"
works run -p 'It was' -n 1 -c 8192
grep -q '^KV cache terse-4: .*; the tuned terse-1 is not used: it was picked for 512 tokens, and 8192 are asked for' "$work/err" || fail "too long a context: $(cat "$work/err")"
rm "$kept"

# Nothing keeps to the promise: the nearest of what there is.
works tune -f "$text" -c 512 --kv kivi-2 --budget "$(value kivi-2 bytes)"
grep -q '^Pick: kivi-2: .*; none that fits has at most 0.005.$' "$work/out" || fail "no promise: $(cat "$work/out")"
rm "$kept"

# The time is over: what was measured is printed; an interrupt keeps nothing.
run tune -c 4096 --time 2s
[ "$status" -eq 1 ] || [ "$status" -eq 0 ] || fail "time: exit $status"
grep -q '^| f16 ' "$work/out" || fail "time: no table: $(cat "$work/out" "$work/err")"
rm -f "$kept"
interrupts tune -c 8192
grep -q '^| f16 ' "$work/out" || fail "an interrupt prints nothing of what was measured: $(cat "$work/out" "$work/err")"
[ ! -e "$kept" ] || fail "a pick is kept after an interrupt"

echo few words >"$work/few"
refuses 'few has [0-9]* tokens: give a text of at least 64' tune -c 512 --kv q8_0 -f "$work/few"
refuses 'No such file' tune -f "$work/missing"
refuses "unknown KV method 'f17'" tune -c 512 --kv q8_0,f17
refuses "unknown KV method ''" tune -c 512 --kv q8_0,
refuses 'names no method to compare with f16' tune -c 512 --kv f16
refuses '-c 63: speed is measured behind at least 64 tokens' tune -c 63
refuses 'the model was trained for 32768 tokens' tune -c 32769
refuses '--time takes a time such as 90s, 10m or 1h, from 1s to 24h, not "10"' tune --time 10
refuses '--time takes a time' tune --time 0s
refuses '--budget takes a size' tune --budget 2X
refuses '512 tokens take [0-9.]* MiB with terse-1, the least of all: allow as much, or lower -c' "${tune[@]}" --budget 1M
refuses '--plot .*/front.pdf: it draws SVG and PNG' "${tune[@]}" --plot "$work/front.pdf"
refuses 'cannot write .*none/front.svg' "${tune[@]}" --plot "$work/none/front.svg"
