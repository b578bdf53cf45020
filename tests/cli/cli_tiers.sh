#!/usr/bin/env bash
# The tiers of kernels give the same divergence: for a few methods, the built-in model and two windows of 512 tokens the KL divergence from f16 is within 2 %
# of that of the scalar kernels with AVX2's and with the processor's best, and within 3 % with terse-4, whose own is so small that weights of 8 bits, which
# the scalar kernels do not have, show beside it. So a figure that was measured on one processor holds for others.
# bench/cuda/divergence.py --within does the same for a GPU. Steps are of 16 tokens: those of the default, 64, read decoded pages, and never the kernels
# that read codes. One window leaves chance of 4 %: what differs in a row's last place may let the encoder of terse-N choose another size for it.
. "$(dirname "$0")/../support/cli.sh"
base=$work/base.kld

works --version
best=$(sed -n 's/.*(kernels for \([a-z0-9]*\)).*/\1/p' "$work/out")
[ -n "$best" ] || fail "the version does not say the kernels: $(cat "$work/out")"
tiers=$(printf '%s\n' avx2 "$best" | sort -u)
[ "$best" != neon ] || tiers=neon
if [ "$best" = scalar ]; then
    echo "skipped: this processor has the scalar kernels alone"
    exit 77
fi

works perplexity -f "$text" -c 512 --chunks 2 --kl-divergence-base "$base"
works calibrate --kv cq-2 -f "$text" -c 512 --chunks 2 -o "$work/cq-2.gguf"

# divergence TIER METHOD [OPTIONS]
divergence() {
    local tier=$1 method=$2
    shift 2
    TERSE_CPU=$tier works perplexity --kl-divergence-base "$base" --kl-divergence -ub 16 --kv "$method" "$@"
    number_after '^KLD mean = ' "$work/out"
}

for method in terse-4 terse-2 kivi-2 "cq-2 --codebook $work/cq-2.gguf"; do
    scalar=$(divergence scalar $method)
    for tier in $tiers; do
        own=$(divergence "$tier" $method)
        echo "${method%% *}: $scalar scalar, $own $tier"
        [ "$method" = terse-4 ] && within=0.03 || within=0.02
        near "$own" "$scalar" "$within" || fail "the KL divergence of ${method%% *} is $own with $tier, and $scalar with the scalar kernels"
    done
done
