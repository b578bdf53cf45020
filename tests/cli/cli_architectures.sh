#!/usr/bin/env bash
# The commands on models without rotation, gpt2, whose learned positions end, and mpt, whose ALiBi goes on; on a model with experts, on one with
# sliding layers, on one with recurrent layers, and on one with latent attention.
. "$(dirname "$0")/../support/cli.sh"
models=tests/fixtures/models

for name in gpt2 mpt qwen3moe qwen3next; do
    works inspect $models/$name.gguf
    grep -q "^$name: architecture $name, 0.1 M parameters, F32" "$work/out" || fail "$name: $(head -n 4 "$work/out")"
    works run -m $models/$name.gguf -p 'the cat' -n 6 --temp 0
    cp "$work/out" "$work/first"
    works run -m $models/$name.gguf -p 'the cat' -n 6 --temp 0 -t 1
    cmp -s "$work/out" "$work/first" || fail "$name: another text with one thread"
    works perplexity -m $models/$name.gguf -f $text -c 128
    exact=$(number_after '^PPL = ' "$work/out")
    works perplexity -m $models/$name.gguf -f $text -c 128 --kv q8_0
    near "$(number_after '^PPL = ' "$work/out")" "$exact" 0.02 || fail "$name: PPL $exact with f16, with q8_0 $(tail -n 2 "$work/out")"
done

# Learned positions: no more tokens than positions, and none that is moved.
model=$models/gpt2.gguf
refuses '600 tokens.*160 positions.*-c 160' run -m $model -p the -n 4 -c 600
refuses '600 tokens.*160 positions.*-c 160' run -m $model -p the -n 4 -c 600 --allow-longer-context
refuses 'streaming-64 moves tokens' run -m $model -p the -n 4 --kv streaming-64
works inspect $model
! grep -q '^| streaming' "$work/out" || fail "gpt2: streaming among the methods"

# Layers that slide are told of.
model=$models/gemma2.gguf
works inspect $model
grep -q 'context 512, 2 layers sliding over 40' "$work/out" || fail "gemma2: $(head -n 5 "$work/out")"
works perplexity -m $model -f $text -c 128
exact=$(number_after '^PPL = ' "$work/out")
works perplexity -m $model -f $text -c 128 --kv q8_0
near "$(number_after '^PPL = ' "$work/out")" "$exact" 0.02 || fail "gemma2: PPL $exact with f16, with q8_0 $(tail -n 2 "$work/out")"
works run -m $model -p the -n 200 --kv streaming-64 -c 128

# ALiBi knows every distance.
model=$models/mpt.gguf
refuses '600 tokens.*512.*--allow-longer-context' run -m $model -p the -n 4 -c 600
works run -m $model -p the -n 4 -c 600 --allow-longer-context
works run -m $model -p the -n 200 --kv streaming-64 -c 128
works inspect $model
grep -q '^| streaming-512' "$work/out" || fail "mpt: no streaming among the methods"

# Experts: a profile is learned, and what they are is said.
model=$models/qwen3moe.gguf
works inspect $model
grep -q 'feed-forward 16 in 8 experts, 3 for a token,' "$work/out" || fail "qwen3moe: $(head -n 6 "$work/out")"
works inspect $model -o json
[ "$(json "$work/out" shape experts) $(json "$work/out" shape experts_used)" = "8 3" ] || fail "qwen3moe: json: $(json "$work/out" shape)"
works calibrate -m $model -f $text --kv terse-2 -c 128 --chunks 4 -o "$work/experts.codebook"
works run -m $model -p 'the cat' -n 6 --kv terse-2 --codebook "$work/experts.codebook"

# Recurrent layers: they are counted, and gradients do not go through them; a profile is learned, and a state goes on.
model=$models/qwen3next.gguf
works inspect $model
grep -q '^5 layers (3 recurrent, all but one in 2) of width 32,' "$work/out" || fail "qwen3next: $(head -n 5 "$work/out")"
works inspect $model -o json
[ "$(json "$work/out" shape recurrent_layers) $(json "$work/out" shape attention_interval)" = "3 2" ] ||
    fail "qwen3next: json: $(json "$work/out" shape)"
[ "$(json "$work/out" shape vocabulary) $(json "$work/out" shape merges) $(json "$work/out" shape embedding_bytes)" = "100 4 12800" ] ||
    fail "qwen3next: json: $(json "$work/out" shape)"
refuses 'recurrent layers of qwen3next' calibrate -m $model -f $text --kv antkv-1 -c 128 --chunks 4 -o "$work/none.codebook"
works calibrate -m $model -f $text --kv terse-2 -c 128 --chunks 4 -o "$work/recurrent.codebook"
works run -m $model -p 'the cat' -n 6 --kv terse-2 --codebook "$work/recurrent.codebook"
works run -m $model -p 'the cat' -n 100 --temp 0 --save-state "$work/recurrent.state"
works run -m $model --state "$work/recurrent.state" -p 'the' -n 6 --temp 0

# Latent attention: values are the ends of keys, so that a token takes one row in each layer; methods that do not serve it are refused and not listed.
model=$models/deepseek2-groups.gguf
works inspect $model
grep -q '1 KV heads of 96, 64 of them values (latent attention), feed-forward 40 in 8 experts,' "$work/out" || fail "deepseek2: $(head -n 6 "$work/out")"
[ "$(grep -cE '^\| (f16|q8_0|q4_0|terse|kivi|streaming|million)' "$work/out")" = 10 ] || fail "deepseek2: other methods: $(tail -n 9 "$work/out")"
works inspect $model -o json
[ "$(json "$work/out" shape latent)" = 64 ] || fail "deepseek2: json: $(json "$work/out" shape)"
works perplexity -m $model -f $text -c 128 --kv f16
exact=$(number_after '^PPL = ' "$work/out")
works perplexity -m $model -f $text -c 128
near "$(number_after '^PPL = ' "$work/out")" "$exact" 0.02 || fail "deepseek2: PPL $exact with f16, by default $(tail -n 2 "$work/out")"
works run -m $model -p 'the cat' -n 4
grep -q '(terse-4)$' "$work/err" || fail "deepseek2: $(cat "$work/err")"
works run -m $model -p 'the cat' -n 4 -ctk q8_0 -ctv q8_0
works run -m $model -p 'the cat' -n 100 --kv kivi-2
refuses 'mat-128 does not serve this model.*--kv terse-N, f16, q8_0, q4_0, kivi-4 or kivi-2' run -m $model -p the -n 4 --kv mat-128
refuses 'does not serve this model' run -m $model -p the -n 4 -ctk q8_0 -ctv q4_0
refuses 'nothing is learned of this model' calibrate -m $model -f $text --kv terse-4 -c 128 --chunks 4 -o "$work/none.codebook"

# Norms after, caps, layers that slide: every learned method that inspect lists can be learned, and serves.
learned_by() { grep -oE '^\| (million|antkv|cq|commvq|terse)-[0-9.]+ ' "$work/out" | tr -d '| '; }
model=$models/gemma2.gguf
works inspect $model
methods=$(learned_by)
[ "$(echo "$methods" | wc -l)" -gt 12 ] || fail "gemma2: $methods"
for method in $methods; do
    works calibrate -m $model -f "$text" --kv "$method" -c 100 --chunks 3 -o "$work/$method.codebook"
    works perplexity -m $model -f "$text" -c 256 --chunks 1 --kv "$method" --codebook "$work/$method.codebook"
done
# The default method serves models without a profile.
works run -m $model -p 'the cat' -n 4
grep -q '(terse-4)$' "$work/err" || fail "gemma2: $(cat "$work/err")"
