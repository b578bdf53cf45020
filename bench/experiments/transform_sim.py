#!/usr/bin/env python3
"""Simulates forms of the codec terse-N on a real model, before they are written in C: a few seconds a row on one GPU.

    transform_sim.py MODEL.gguf TOKENS ROWS.txt [--seconds S] [--output ROWS.jsonl]
    transform_sim.py --tokenize LIBTERSE.so MODEL.gguf TEXT TOKENS.SPLIT.u32     writes a text's tokens, for TOKENS above
    transform_sim.py --table ROWS.jsonl     prints such a file as a table

MODEL is of llama's architecture or Qwen2's. TOKENS.test.u32 and TOKENS.valid.u32 are its tokens of WikiText's test and validation splits, as
32-bit numbers. A line of ROWS is a row: words KEY=VALUE, see Row. Needs PyTorch, numpy and the package gguf.

Of 2 windows of 8,192 tokens everything but the first 4 and the newest 128 tokens is read compressed, in both halves, so that errors propagate
through the whole window; the second half is scored against the exact model. Divergences are about twice those of the real cache, which reads
the first half exactly. Ranks, bases and widths are as the codec would have them; steps, signs and gains (8 bits) too, but bytes are not packed.

Shapes: L layers, Hq query heads, Hk KV heads, hd head_dim, T tokens."""

import argparse
import ctypes
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, os.environ.get("GGUF_PACKAGE", "."))
import gguf  # noqa: E402
from gguf.quants import dequantize  # noqa: E402

DEVICE = os.environ.get("DEVICE", "cuda")
WINDOW, WINDOWS, SINKS, RECENT = 8192, 2, 4, 128
LEARN_WINDOW, LEARN_WINDOWS = 2048, 8  # of the profile
GRADIENT_WINDOWS = 6  # of importance "all"
WIDEST = 8


@dataclass
class Row:
    bits: float = 2.0  # mean width of a component
    run: int = 64  # tokens whose keys share a frame; 0: keys are coded before rotation
    own: int = 2048  # the sequence's own tokens that statistics come from
    pool: int = 2048  # tokens of the profile that are pooled with them
    importance: str = "all"  # gradients of 6 windows of 2,048 tokens; NUMBER or NUMBER+OFFSET: one window of so many; equal: none
    keys: float = 0.0  # importance of keys times 2 to this power
    apart: float = 1.0  # share of the pairs whose mean before rotation is kept apart, those first that would cost most
    group: int = 4  # neighbouring components that share a width
    widths: str = "012345678"  # that a group may have
    levels: str = "uniform"  # with the best step of a Gaussian; fitted: with each component's own best step; lloyd: the levels of Lloyd and Max
    side: str = "kv"  # what is compressed


# ---- The model


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)

        def meta(key):
            field = reader.fields[key]
            value = field.parts[field.data[0]]
            return value.tobytes().decode() if field.types[0] == gguf.GGUFValueType.STRING else value.tolist()[0]

        arch = meta("general.architecture")
        self.layers, width = int(meta(arch + ".block_count")), int(meta(arch + ".embedding_length"))
        self.heads, self.kv_heads = int(meta(arch + ".attention.head_count")), int(meta(arch + ".attention.head_count_kv"))
        self.hd, self.group = width // self.heads, self.heads // self.kv_heads
        self.epsilon = float(meta(arch + ".attention.layer_norm_rms_epsilon"))
        self.frequency = float(meta(arch + ".rope.freq_base")) ** (-torch.arange(0, self.hd, 2, dtype=torch.float64) / self.hd)
        self.w = {}
        for t in reader.tensors:
            values = np.ascontiguousarray(dequantize(t.data, t.tensor_type)).astype(np.float32)
            self.w[t.name] = torch.from_numpy(values).reshape([int(n) for n in reversed(t.shape)]).to(DEVICE)
        if arch == "qwen2":  # pairs of its RoPE are halves of a head: made neighbours, as llama's are
            order = torch.arange(self.hd, device=DEVICE).view(2, self.hd // 2).T.flatten()
            for layer in range(self.layers):
                for name, n in (("q", self.heads), ("k", self.kv_heads)):
                    for part in ("weight", "bias"):
                        key = f"blk.{layer}.attn_{name}.{part}"
                        self.w[key] = self.w[key].view(n, self.hd, -1)[:, order].reshape(self.w[key].shape)
        self.output = self.w.get("output.weight", self.w["token_embd.weight"])
        # An error of a value enters the residual stream through W_o: its metric is W_o^T W_o, summed over a KV head's query heads.
        self.value_metric = []
        for layer in range(self.layers):
            o = self.w[f"blk.{layer}.attn_output.weight"].view(-1, self.kv_heads, self.group, self.hd)
            self.value_metric.append(torch.einsum("ehgc,ehgd->hcd", o, o))

    def norm(self, x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * weight

    def rotate(self, x, positions):
        """x [..., T, hd] by its positions."""
        angle = positions.double().cpu()[:, None] * self.frequency
        c, s = angle.cos().float().to(DEVICE), angle.sin().float().to(DEVICE)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)

    def rope(self, x):
        return self.rotate(x, torch.arange(x.shape[-2]))

    def forward(self, ids, attention, last=None):
        """Logits; attention(layer, q [Hq, T, hd], k, v [Hk, T, hd]) before rotation -> [Hq, T, hd]."""
        x, n = self.w["token_embd.weight"][ids], len(ids)
        for layer in range(self.layers):
            w = lambda name, layer=layer: self.w[f"blk.{layer}.{name}.weight"]  # noqa: E731
            h = self.norm(x, w("attn_norm"))

            def heads(name, n_heads, layer=layer, h=h, w=w):
                y = h @ w(name).T + self.w.get(f"blk.{layer}.{name}.bias", 0)
                return y.view(n, n_heads, self.hd).transpose(0, 1)

            out = attention(layer, heads("attn_q", self.heads), heads("attn_k", self.kv_heads), heads("attn_v", self.kv_heads))
            x = x + out.transpose(0, 1).reshape(n, -1) @ w("attn_output").T
            h = self.norm(x, w("ffn_norm"))
            x = x + (F.silu(h @ w("ffn_gate").T) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        x = self.norm(x, self.w["output_norm.weight"])
        return (x[-last:] if last else x) @ self.output.T

    def exact(self, layer, q, k, v):
        wide = lambda x: x[None].repeat_interleave(self.group, 1)  # noqa: E731
        return F.scaled_dot_product_attention(self.rope(q)[None], wide(self.rope(k)), wide(v), is_causal=True)[0]

    def query_power(self, q):
        """[Hk, hd / 2]: the mean square of the queries' pairs."""
        return q.pow(2).view(self.kv_heads, self.group, -1, self.hd // 2, 2).mean((1, 2, 4))

    def capture(self, ids):
        """Keys and values before rotation, [L] of [Hk, T, hd], and the queries' power, [L] of [Hk, hd / 2]."""
        keys, values, power = [], [], []

        def attention(layer, q, k, v):
            keys.append(k), values.append(v), power.append(self.query_power(q))
            return self.exact(layer, q, k, v)

        self.forward(ids, attention, 1)
        return keys, values, power

    def gradients(self, ids):
        """Keys, values and the loss's gradients with respect to them; labels are drawn from the model."""
        kept = []

        def attention(layer, q, k, v):
            k, v = (x if x.requires_grad else x.detach().requires_grad_(True) for x in (k, v))
            k.retain_grad(), v.retain_grad()
            kept.append((k, v))
            return self.exact(layer, q, k, v)

        with torch.enable_grad():
            embedding = self.w["token_embd.weight"].requires_grad_(True)
            logits = self.forward(ids, attention)
            labels = torch.distributions.Categorical(logits=logits.detach()).sample()
            F.cross_entropy(logits, labels, reduction="sum").backward()
            embedding.grad = None
            embedding.requires_grad_(False)
        return [(k.detach(), v.detach(), k.grad, v.grad) for k, v in kept]


# ---- Quantizers of a component of variance 1


class Levels:
    def __init__(self):
        sample = torch.randn(1 << 20, device=DEVICE)
        self.step, self.table, self.error = {}, {}, {"uniform": [1.0], "lloyd": [1.0]}
        for bits in range(1, WIDEST + 1):
            error, self.step[bits] = min(((sample - self.uniform(sample, bits, s)).pow(2).mean().item(), s) for s in np.linspace(0.01, 2.2, 300))
            self.error["uniform"].append(error)
            self.table[bits] = self.lloyd_max(sample, bits)
            self.error["lloyd"].append((sample - self.nearest(sample, bits)).pow(2).mean().item())
        self.error["fitted"] = self.error["uniform"]

    @staticmethod
    def uniform(x, bits, step):
        return (torch.clamp(torch.floor(x / step + 2 ** (bits - 1)), 0, 2**bits - 1) - (2**bits - 1) / 2) * step

    @staticmethod
    def lloyd_max(sample, bits):
        c = torch.erfinv((torch.arange(2**bits, device=DEVICE) + 0.5) / 2**bits * 2 - 1) * math.sqrt(2) * 1.2
        for _ in range(60):
            of = torch.bucketize(sample, (c[1:] + c[:-1]) / 2)
            n = torch.bincount(of, minlength=2**bits).clamp_min(1)
            c = (torch.zeros(2**bits, device=DEVICE).scatter_add_(0, of, sample) / n).sort().values
        return c

    def nearest(self, x, bits):
        c = self.table[bits]
        return c[torch.bucketize(x.contiguous(), (c[1:] + c[:-1]) / 2)]

    def code(self, x, bits, kind, step):
        """x [T, n] in units of their size; step [n] of kind fitted."""
        return self.nearest(x, bits) if kind == "lloyd" else self.uniform(x, bits, step if kind == "fitted" else self.step[bits])

    def fit_steps(self, x, bits):
        """The steps [n] that are best for x [T, n], from 0.6 to 2 times a Gaussian's."""
        steps = self.step[bits] * torch.linspace(0.6, 2, 36, device=DEVICE)
        return steps[torch.stack([(x - self.uniform(x, bits, s)).pow(2).mean(0) for s in steps]).argmin(0)]


# ---- The transform of a layer and side, all KV heads together


def roots(metric):
    """The symmetric root of a metric [Hk, hd, hd] and its inverse; directions of little weight count as a ten thousandth of the largest."""
    e, u = torch.linalg.eigh(metric.double())
    e = e.clamp_min(1e-12 * e.max()).clamp_min(e.max(-1, keepdim=True).values * 1e-4)
    return ((u * e.sqrt()[:, None]) @ u.transpose(1, 2)).float(), ((u / e.sqrt()[:, None]) @ u.transpose(1, 2)).float()


@dataclass
class Transform:
    mean: torch.Tensor  # [Hk, 1, hd]
    root: torch.Tensor  # of the metric, and its inverse [Hk, hd, hd]
    inverse: torch.Tensor
    basis: torch.Tensor  # [Hk, channel, component], components in order of their size
    size: torch.Tensor  # [Hk, hd], of components of a row over its gain
    gains: tuple  # least and largest [Hk, 1, 1]
    power: torch.Tensor  # [Hk] mean square of gains
    sample: torch.Tensor  # [Hk, T, hd] components in units of their size, that it was fitted to
    widths: torch.Tensor = None  # [Hk, hd] bits
    steps: torch.Tensor = None  # [Hk, hd] in units of the size


def fit(x, metric):
    root, inverse = roots(metric)
    mean = x.mean(1, keepdim=True)
    z = (x - mean) @ root
    gain = z.pow(2).mean(-1, keepdim=True).sqrt().clamp_min(1e-9)
    u = z / gain
    basis = torch.linalg.eigh((u.transpose(1, 2) @ u / u.shape[1]).double())[1].float().flip(-1)
    y = u @ basis
    size = y.pow(2).mean(1)
    order = size.argsort(1, descending=True)
    basis, y = (x.gather(2, order[:, None].expand_as(x)) for x in (basis, y))
    gains = gain.amin(1, keepdim=True), gain.amax(1, keepdim=True) * 1.25
    size = size.gather(1, order).sqrt()
    return Transform(mean, root, inverse, basis, size, gains, gain.pow(2).mean((1, 2)), y / size[:, None].clamp_min(1e-9))


def by_width(widths):
    """Each head, each width of widths [Hk, hd] but 0, and the head's components that have it."""
    for head, own in enumerate(widths):
        for bits in range(1, WIDEST + 1):
            columns = (own == bits).nonzero()[:, 0]
            if len(columns):
                yield head, bits, columns


def share(transforms, importance, row, levels):
    """Gives each group of components the width where the next bit is worth as much as everywhere else. importance [2 L, Hk]."""
    allowed = sorted(int(w) for w in row.widths)
    error = torch.tensor(levels.error[row.levels], device=DEVICE)[allowed]
    bits = torch.tensor(allowed, device=DEVICE, dtype=torch.float32)
    weight = torch.stack([t.size.pow(2) for t in transforms]) * importance[..., None]
    n, heads, hd = weight.shape
    weight = weight.view(n, heads, hd // row.group, row.group).mean(-1)
    least, most = 1e-40, weight.max().item() * 2

    def at(price):
        return (weight[..., None] * error + price * bits).argmin(-1)

    for _ in range(100):
        price = math.sqrt(least * most)
        if bits[at(price)].mean() > row.bits:
            least = price
        else:
            most = price
    chosen = bits[at(most)].long().repeat_interleave(row.group, -1)
    for t, w in zip(transforms, chosen):
        t.widths, t.steps = w, torch.zeros(w.shape, device=DEVICE)
        for head, width, columns in by_width(w) if row.levels == "fitted" else ():
            t.steps[head, columns] = levels.fit_steps(t.sample[head][:, columns], width)


def coded(x, t, row, levels, key):
    """Rows [Hk, T, hd] as they are read back."""
    z = (x - t.mean) @ t.root
    y = (z / z.pow(2).mean(-1, keepdim=True).sqrt().clamp_min(1e-9)) @ t.basis / t.size[:, None].clamp_min(1e-9)
    read = torch.zeros_like(y)
    for head, bits, columns in by_width(t.widths):
        read[head][:, columns] = levels.code(y[head][:, columns], bits, row.levels, t.steps[head, columns])
    read = (read * t.size[:, None]) @ t.basis.transpose(1, 2)
    power = read.pow(2).sum(-1, keepdim=True).clamp_min(1e-12)
    gain = (z.pow(2).sum(-1, keepdim=True) / power).sqrt() if key else (z * read).sum(-1, keepdim=True) / power
    least, most = t.gains
    gain = least + ((gain - least) / (most - least) * 255).round().clamp(0, 255) / 255 * (most - least)
    return t.mean + (gain * read) @ t.inverse


# ---- A simulation


class Simulation:
    def __init__(self, options):
        self.m = Model(options.model)
        self.levels = Levels()
        read = lambda split: torch.from_numpy(np.fromfile(f"{options.tokens}.{split}.u32", np.uint32).astype(np.int64)).to(DEVICE)  # noqa: E731
        test, self.valid = read("test"), read("valid")
        self.windows = [test[i * WINDOW : (i + 1) * WINDOW] for i in range(WINDOWS)]
        self.base = [self.scored(ids, self.m.exact) for ids in self.windows]
        self.profile = self.learn()
        self.captured, self.known = {}, {}

    def scored(self, ids, attention):
        return self.m.forward(ids, attention, WINDOW // 2)[:-1].log_softmax(-1)

    def learn(self):
        """A sample of the profile's tokens behind each window's sinks: keys, values, positions, and the queries' power."""
        found = [self.m.capture(self.valid[i * LEARN_WINDOW : (i + 1) * LEARN_WINDOW]) for i in range(LEARN_WINDOWS)]
        position = torch.arange(LEARN_WINDOW).repeat(LEARN_WINDOWS)
        order = torch.randperm(len(position), generator=torch.Generator().manual_seed(7))
        order = order[position[order] >= SINKS]
        join = lambda part, layer: torch.cat([f[part][layer] for f in found], 1)[:, order.to(DEVICE)]  # noqa: E731
        layers = range(self.m.layers)
        power = [torch.stack([f[2][layer] for f in found]).mean(0) for layer in layers]
        return [join(0, layer) for layer in layers], [join(1, layer) for layer in layers], power, position[order]

    # ---- Frames of keys

    def to_frame(self, k, positions, row):
        return self.m.rotate(k, positions % row.run) if row.run else k

    def from_frame(self, k, positions, row):
        return self.m.rotate(k, positions - positions % row.run) if row.run else self.m.rope(k)

    def apart(self, k, power, row):
        """The mean before rotation [Hk, 1, hd] of the pairs that are kept apart. What a pair would cost in a run's frame is the power of the queries'
        pair, times the square of the mean, times the part of it that its turning in a run makes vary."""
        mean = k.mean(1, keepdim=True)
        if not row.run:
            return mean
        angle = torch.arange(row.run, dtype=torch.float64)[:, None] * self.m.frequency
        varies = 1 - (angle.cos().mean(0).pow(2) + angle.sin().mean(0).pow(2))
        cost = mean.pow(2).view(self.m.kv_heads, -1, 2).sum(-1) * power * varies.float().to(DEVICE)
        kept = round(row.apart * cost.shape[1])
        mask = torch.zeros_like(cost).scatter_(1, cost.argsort(1, descending=True)[:, :kept], 1.0)
        return mean * mask.repeat_interleave(2, 1)[:, None]

    # ---- Importance: the mean square of the gradient of a component over its gain, of a layer, side and KV head [2 L, Hk]

    def gradient_windows(self, name):
        if name == "all":
            return [self.valid[i * LEARN_WINDOW : (i + 1) * LEARN_WINDOW] for i in range(GRADIENT_WINDOWS)]
        n, _, offset = name.partition("+")
        return [self.valid[100_000 + int(offset or 0) :][: int(n)]]

    def gradients(self, name):
        """Keys, values and gradients of the windows' tokens behind the sinks, [L] of four tensors [Hk, T, hd], and the tokens' positions [T]."""
        if name not in self.known:
            found = [self.m.gradients(ids) for ids in self.gradient_windows(name)]
            joined = [[torch.cat([f[layer][i][:, SINKS:] for f in found], 1) for i in range(4)] for layer in range(self.m.layers)]
            self.known[name] = joined, torch.cat([torch.arange(SINKS, f[0][0].shape[1]) for f in found])
        return self.known[name]

    def importance(self, transforms, means, row):
        if row.importance == "equal":
            return torch.ones(2 * self.m.layers, self.m.kv_heads, device=DEVICE)
        (gradients, at), out = self.gradients(row.importance), []
        for layer, (k, v, gk, gv) in enumerate(gradients):
            for t, x, g in ((transforms[2 * layer], self.to_frame(k - means[layer], at, row), self.to_frame(gk, at, row)), (transforms[2 * layer + 1], v, gv)):
                gain = ((x - t.mean) @ t.root).pow(2).mean(-1)
                out.append(((g @ t.inverse).pow(2).mean(-1) * gain).mean(1))
        out = torch.stack(out)
        out[0::2] *= 2.0**row.keys
        return out

    # ---- A row

    def transforms(self, window, row):
        """Of a window's own first tokens and the profile's sample: [2 L] and the means that are kept apart, [L]."""
        key = (window, row.own)
        if key not in self.captured:
            self.captured[key] = self.m.capture(self.windows[window][: row.own])
        keys, values, power = self.captured[key]
        pool_k, pool_v, pool_power, pool_at = self.profile
        at = torch.cat((torch.arange(SINKS, row.own), pool_at[: row.pool]))
        out, means = [], []
        for layer in range(self.m.layers):
            k = torch.cat((keys[layer][:, SINKS:], pool_k[layer][:, : row.pool]), 1)
            v = torch.cat((values[layer][:, SINKS:], pool_v[layer][:, : row.pool]), 1)
            queries = (power[layer] * row.own + pool_power[layer] * row.pool) / (row.own + row.pool)
            mean = self.apart(k, queries, row)
            out.append(fit(self.to_frame(k - mean, at, row), torch.diag_embed(queries.repeat_interleave(2, 1))))
            out.append(fit(v, self.m.value_metric[layer]))
            means.append(mean)
        share(out, self.importance(out, means, row), row, self.levels)
        return out, means

    def attention(self, transforms, means, row):
        m = self.m

        def attention(layer, q, k, v):
            n = q.shape[1]
            at, index = torch.arange(n), torch.arange(n, device=DEVICE)
            qr, kr, kc, vc = m.rope(q), m.rope(k), None, v.clone()
            if "k" in row.side:
                frame = coded(self.to_frame(k - means[layer], at, row), transforms[2 * layer], row, self.levels, True)
                kc = self.from_frame(frame, at, row) + m.rope(means[layer].expand_as(k))
                kc[:, :SINKS] = kr[:, :SINKS]
            else:
                kc = kr
            if "v" in row.side:
                vc = coded(v, transforms[2 * layer + 1], row, self.levels, False)
                vc[:, :SINKS] = v[:, :SINKS]
            out = torch.empty_like(q)
            for head in range(m.heads):
                h = head // m.group
                for first in range(0, n, 2048):
                    end = min(n, first + 2048)
                    recent = index[None, :end] > index[first:end, None] - RECENT
                    s = torch.where(recent, qr[head, first:end] @ kr[h, :end].T, qr[head, first:end] @ kc[h, :end].T) / math.sqrt(m.hd)
                    a = s.masked_fill(index[None, :end] > index[first:end, None], -1e30).softmax(-1)
                    out[head, first:end] = (a * recent) @ v[h, :end] + (a * ~recent) @ vc[h, :end]
            return out

        return attention

    def measure(self, row):
        divergences, same, shares = [], [], []
        for window, ids in enumerate(self.windows):
            transforms, means = self.transforms(window, row)
            shares.append([torch.stack([t.widths.float().mean() for t in transforms[side::2]]).mean().item() for side in (0, 1)])
            got, base = self.scored(ids, self.attention(transforms, means, row)), self.base[window]
            divergences += [(base[i : i + 512].exp() * (base[i : i + 512] - got[i : i + 512])).sum(-1) for i in range(0, len(base), 512)]
            same.append((base.argmax(-1) == got.argmax(-1)).float())
        d = torch.cat(divergences)
        k, v = np.mean(shares, 0)
        return {"kld": d.mean().item(), "kld_99.9": d.quantile(0.999).item(), "same_top": 100 * torch.cat(same).mean().item(), "bits_keys": float(k), "bits_values": float(v)}


def parse_row(line):
    kinds = {f.name: type(f.default) for f in fields(Row)}
    words = [word.split("=", 1) for word in line.split()]
    return Row(**{key: kinds[key](value) for key, value in words})


def tokenize(library, model_path, text_path, output):
    """terse_tokenize of include/terse.h."""
    terse, model, error = ctypes.CDLL(os.path.abspath(library)), ctypes.c_void_p(), ctypes.create_string_buffer(4096)
    if terse.terse_model_load(os.fsencode(model_path), ctypes.byref(model), error):
        sys.exit(f"transform_sim.py: {model_path} cannot be loaded")
    with open(text_path, "rb") as file:
        text = file.read()
    n, tokens = ctypes.c_size_t(), (ctypes.c_int32 * (len(text) + 4))()
    if terse.terse_tokenize(model, text, ctypes.c_size_t(len(text)), 0, tokens, ctypes.c_size_t(len(tokens)), ctypes.byref(n), error):
        sys.exit(f"transform_sim.py: {text_path} cannot be tokenized")
    np.ctypeslib.as_array(tokens)[: n.value].astype(np.uint32).tofile(output)


def print_table(path):
    """A row is named by what differs from the defaults."""
    usual = asdict(Row())
    print("| row | KLD | 99.9 % | same top-1 % | bits of keys, values |\n| --- | ---: | ---: | ---: | ---: |")
    with open(path, encoding="utf-8") as file:
        for r in map(json.loads, file):
            name = " ".join(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in r["row"].items() if value != usual[key] or key == "bits")
            print(f"| {name} | {r['kld']:.4f} | {r['kld_99.9']:.3f} | {r['same_top']:.1f} | {r['bits_keys']:.2f}, {r['bits_values']:.2f} |")


def main():
    if sys.argv[1:2] == ["--table"]:
        return print_table(*sys.argv[2:])
    if sys.argv[1:2] == ["--tokenize"]:
        return tokenize(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model"), parser.add_argument("tokens"), parser.add_argument("rows")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no row is begun after so many")
    parser.add_argument("--output", help="file that each row is appended to, a line of JSON")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    begin = time.time()
    with open(options.rows, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    rows = [(line, parse_row(line)) for line in lines]
    with torch.no_grad():
        simulation = Simulation(options)
        print(f"{time.time() - begin:6.1f} s  ready", flush=True)
        for line, row in rows:
            if time.time() - begin > options.seconds:
                print("out of time before:", line)
                return
            try:
                result = simulation.measure(row)
            except (RuntimeError, ValueError, KeyError, IndexError) as error:  # a row that cannot be must not cost the others
                print("failed:", line, repr(error)[:200], flush=True)
                continue
            print(f"{time.time() - begin:6.1f} s  {line:60s} {result}", flush=True)
            if options.output:
                with open(options.output, "a", encoding="utf-8") as file:
                    file.write(json.dumps({"model": os.path.basename(options.model), "row": asdict(row), **result}) + "\n")


if __name__ == "__main__":
    main()
