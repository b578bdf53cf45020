"""The faults of the backend cuda: plant_faults.py plants them. A test is a program, and which of its tests must find the fault."""

KV = "src/backend/cuda/kv/"
METHODS = "test_cuda_cache_emulated every_method_equals*"
PARTS = "test_cuda_cache_emulated every_method_is_read_in_parts"
RUNS = "test_cuda_evict_emulated codes_are_evicted*"
KEPT = "test_cuda_evict_emulated the_best_of_a_prompt*"
STREAM = "test_cuda_evict_emulated streaming_equals*"
KERNELS = "test_attend_decode_emulated codecs_heads*"
ENCODE = "test_encode_transform_emulated"
COMMVQ = "test_encode_commvq_emulated codes_are_nearly*"
CENTROIDS = "test_encode_centroids_emulated codes_of_many_centroids*"
NARROW = "test_encode_centroids_emulated codes_of_many_narrow*"
ANCHORS = "test_cuda_anchors_emulated attention_reads*"
ALIBI = "test_cuda_anchors_emulated alibi*"
SCORES = "test_anchor_kernels_emulated"
CUDA = "src/backend/cuda/"
WINDOWS = "test_learning_emulated"
STEP = "test_weights_emulated rows_of_a_step"
SHARED = "test_cuda_ranks_prompt_emulated"
DISTANCES = "test_cuda_ranks_emulated ranks_count*"
REPLACED = "test_cuda_mat_emulated tokens_one_by_one*"
RANKS = "test_cuda_ranks_emulated ranks_choose*"
TABLES = "test_attend_centroids_emulated tables"
BATCH = "test_cuda_batch_emulated a_step_of_several*"
FAULTS = (  # file, text that occurs once in it, what takes its place, the test, the fault; FAULT is 1 where it is on, else 0
    (KV + "attend_transform.cuh", "sum += weight;\n    }", "sum += FAULT ? 0 : weight;\n    }", "test_attend_transform_emulated", "terse-N: values less no mean are read with it"),
    (KV + "encode_transform.cu", "if (m.small.errors[code] < least)", "if (!FAULT && m.small.errors[code] < least)", ENCODE, "terse-N: rows near zero are coded less the mean, heads of 256 channels"),
    (KV + "decode_transform_tiles.cu", "(no_mean[i] ? 0 : mean.of[j])", "(!FAULT && no_mean[i] ? 0 : mean.of[j])", ENCODE, "terse-N: rows less no mean are read back with it"),
    (KV + "decode_transform_tiles.cu", "if (quad.planes[1]) {", "if (!FAULT && quad.planes[1]) {", ENCODE, "terse-N: codes are read back without their lower bits"),
    (KV + "decode_transform_tiles.cu", "pair + j >= e.pre_rope.pairs", "!FAULT && pair + j >= e.pre_rope.pairs", ENCODE, "terse-N: pairs without a mean before rotation get one as they are read back"),
    (KV + "encode_transform_tiles.cu", "if (error < least) least = error, best = code;", "if (!FAULT && error < least) least = error, best = code;", ENCODE, "terse-N: rows near zero are coded less the mean"),
    (KV + "attend_transform.cuh", "zero), gain, mean)", "zero), gain, FAULT ? 0 : mean)", METHODS, "terse-N: the mean of keys is zero"),
    (KV + "attend_transform.cuh", "(float)(twice - zero)", "(float)(twice - (FAULT ? 0 : zero))", METHODS, "terse-N: levels of keys are not centred"),
    (KV + "attend_transform.cuh", "weight * gain_of(codes[i / 4], i % 4, readers.gain_zero, readers.gain_step)", "weight * (FAULT ? 1 : gain_of(codes[i / 4], i % 4, readers.gain_zero, readers.gain_step))", METHODS, "terse-N: gains of values are left out"),
    (KV + "attend_transform_runs.cuh", "ADJACENT || c < half ? turn[0].y", "(ADJACENT || c < half) != FAULT ? turn[0].y", METHODS, "terse-N: queries are rotated the wrong way"),
    (KV + "attend_transform_kernel.cuh", "const float zero = gained * own.zero;", "const float zero = FAULT ? 0 : gained * own.zero;", METHODS, "terse-N: levels of values are not centred"),
    (KV + "attend_transform_merge.cuh", "float sum = __ldg(values.mean + channel)", "float sum = (FAULT ? 0 : __ldg(values.mean + channel))", METHODS, "terse-N: the mean of values is zero"),
    (KV + "attend_scaled.cuh", "-K::zero_code(a.codec[0]) * sum", "-(FAULT ? 0 : K::zero_code(a.codec[0])) * sum", METHODS, "q4_0: codes of keys are not centred"),
    (KV + "attend_scaled.cuh", "const float offset = V::offset(codec);", "const float offset = FAULT ? 0 : V::offset(codec);", METHODS, "q4_0 and kivi: values without their zero points"),
    (KV + "attend_scaled.cuh", "mma(zero[h][n], z0, z0, z1, z1, own.x, own.y);", "if (!FAULT) mma(zero[h][n], z0, z0, z1, z1, own.x, own.y);", METHODS, "kivi: keys without their zero points"),
    (KV + "attend_centroids.cuh", "if (keys.normalized) apply_gains(", "if (keys.normalized && !FAULT) apply_gains(", METHODS, "antkv: keys without their gains"),
    (KV + "attend_centroids.cuh", "in_runs ? from / ROPE_RUN_TOKENS : 0", "in_runs ? (from + FAULT * PAGE_TOKENS) / ROPE_RUN_TOKENS : 0", METHODS, "cq: the last page of a rope run is read in the next one's frame"),
    (KV + "attend_common.cuh", "== s.parts - count;", "== s.parts - (FAULT ? 1 : count);", "test_attend_centroids_emulated parts", "million, cq, antkv, commvq: a CTA arrives once for all of its parts"),
    (KV + "attend_centroids.cuh", "s.part++, ring.start(s, warp, WARPS);", "s.part += !FAULT, ring.start(s, warp, WARPS);", BATCH, "million, cq, antkv: a CTA reads its first part for all of them"),
    (KV + "attend_centroids.cuh", "if (other_run || (SEVERAL && page == 0)) {", "if (other_run || (SEVERAL && page == 0 && !FAULT)) {", "test_attend_centroids_emulated parts", "million, cq, antkv: of the parts of a rope run only the first has queries"),
    (KV + "attend_centroids.cuh", "rest + (SEVERAL ? 2 * TABLE_BYTES : 0);", "rest + (SEVERAL && !FAULT ? 2 * TABLE_BYTES : 0);", "test_attend_centroids_emulated parts", "million, cq, antkv: sums of a part take the place of the centroids"),
    (KV + "attend_centroids.cuh", "turn += memory::rows_at_once) {", "turn += FAULT ? WARPS : memory::rows_at_once) {", "test_attend_centroids_emulated parts", "million, cq, antkv: rows of halves are not read that have no room at once"),
    (KV + "attend_tables.cu", "if (warp == 0 && fresh)", "if (warp == 0 && fresh && !FAULT)", TABLES, "million-4 by tables: of the chunks of a part only the last is read"),
    (KV + "attend_tables.cu", "live & 2 ? x.y", "live & 2 || FAULT ? x.y", TABLES, "million-4 by tables: every other token is read that is not to be"),
    (KV + "attend_tables.cu", "const float one = weights > 0", "const float one = weights > 0 && !FAULT", TABLES, "million-4 by tables: weights are whole numbers"),
    (KV + "attend_tables.cu", "        s.part++;\n    }\n    arrive", "        s.part += !FAULT;\n    }\n    arrive", TABLES, "million-4 by tables: a CTA leaves its parts as the first one"),
    (KV + "attend_tables.cuh", "+ lane_id() / lanes;", "+ (FAULT ? 0 : lane_id() / lanes);", TABLES, "million-4 by tables: every other centroid of values is left out"),
    (KV + "attend_commvq.cuh", "turn += memory::rows_at_once) {", "turn += FAULT ? commvq_warps : memory::rows_at_once) {", "test_attend_commvq_emulated parts", "commvq: rows of halves are not read that have no room at once"),
    (KV + "attend_commvq.cuh", "s.part < row_units;", "s.part + FAULT < row_units;", "test_attend_commvq_emulated parts", "commvq: the last rows of halves are left out where a CTA reads several parts"),
    (KV + "attend_commvq.cuh", "rest + (SEVERAL ? places::bytes : 0);", "rest + (SEVERAL && !FAULT ? places::bytes : 0);", BATCH, "commvq: sums of a part take the place of the tables"),
    (KV + "attend_commvq.cuh", "sums.merged[first + i][query] = sum;", "sums.merged[(FAULT ? 0 : first) + i][query] = sum;", "test_attend_commvq_emulated head_sizes*", "commvq: codes are merged into the first ones where not all have room at once"),
    (KV + "attend_common.cuh", "first = s.first_page + (uint32_t)(n * s.part / s.parts);", "first = s.first_page + (uint32_t)(n * s.part / s.parts) - (FAULT && s.part > 0);", PARTS, "the last page of a split-K part is read by the next part, too"),
    (KV + "attend_common.cuh", "sums.x * a + more.x * b", "sums.x * a + more.x * (FAULT ? a : b)", METHODS, "partial states are merged with the wrong weight"),
    (KV + "attend_common.cuh", "into.y * a + from.y * b", "FAULT ? into.y + from.y : into.y * a + from.y * b", METHODS, "sums of exponentials are merged without their maxima"),
    (KV + "append_decode.cuh", "place_of(s, a.heads, a.layer, head, 1, query.position)", "place_of(s, a.heads, a.layer, head, 1, query.position + FAULT)", METHODS, "new values lie a row too far in the window"),
    (KV + "append_decode.cuh", "rotate_row(a.rotary, hd, query.position, q,", "rotate_row(a.rotary, hd, query.position + FAULT, q,", METHODS, "queries are rotated one position too far"),
    ("src/kv/read_lists.c", "read_slots_of(set->first, set->count, from, UINT64_MAX)", "read_slots_of(set->first, set->count - FAULT, from, UINT64_MAX)", METHODS, "the last token of each page is not read"),
    (KV + "batch.c", "group->codec[CODEC_KEYS] == codec_read(cache, CODEC_KEYS)", "(FAULT || group->codec[CODEC_KEYS] == codec_read(cache, CODEC_KEYS))", BATCH, "a sequence with pages is read with one that has none, by f16's kernel"),
    (KV + "views.c", "(uint32_t)cache->base.plan.after.exact;", "(uint32_t)cache->base.plan.after.exact - (FAULT && cache->base.plan.after.exact > 0);", METHODS, "one of the first tokens is not read"),
    ("src/kv/read_lists.c", "first > lists->from ? first : lists->from}", "(first > lists->from ? first : lists->from) - (FAULT && first > 4)}", METHODS, "the last token of the last page is read twice"),
    (KV + "window.c", "(set->first - cache->window_origin)", "(set->first + FAULT - cache->window_origin)", METHODS, "pages are encoded from the next token on"),
    ("src/kv/cache.c", "base->n_anchors += plan->anchors;", "base->n_anchors += plan->anchors; if (FAULT && base->pages.n_sealed > 1) base->pages.sets[base->pages.n_sealed - 1] = base->pages.sets[base->pages.n_sealed - 2];", METHODS, "a page is read twice, another not at all"),
    (KV + "attend_common.cuh", "position + 1 - from;", "position + 1 + FAULT - from;", KERNELS, "a token behind the query is read of its page"),
    (KV + "attend_common.cuh", "s.position + 1 - window : 0", "s.position + 1 + FAULT - window : 0", METHODS, "a token behind the query is read of the window"),
    (KV + "attend_common.cuh", "listed_from(s, s.first_page, 1).set(0).first; }", "listed_from(s, s.first_page, 1).set(0).first + FAULT * PAGE_TOKENS; }", RUNS, "terse-N: the first rope run that is left is read a page late"),
    (KV + "append_decode.cuh", "query.position - (uint32_t)s.list.moved, q", "query.position - (FAULT ? 0 : (uint32_t)s.list.moved), q", STREAM, "streaming-N: the first tokens do not move up"),
    ("src/kv/read_lists.c", "masked < good && table->sets[masked].first < older", "masked < good && table->sets[masked].first + FAULT * PAGE_TOKENS < older", STREAM, "streaming-N: evicted tokens of a page are read"),
    (KV + "rank.cu", "pooled_of(r, head)[i] = sum / (float)(last - first + 1);", "pooled_of(r, head)[i] = FAULT ? scores_of(r, head)[i] : sum / (float)(last - first + 1);", KEPT, "snapkv-N: ranks are not averaged with the neighbours'"),
    (KV + "rank.cu", "a.y * expf(a.x - most) + b.y * expf(b.x - most)", "FAULT ? a.y + b.y : a.y * expf(a.x - most) + b.y * expf(b.x - most)", KEPT, "snapkv-N: weights are not a softmax"),
    (KV + "kept.c", ".first_query = (uint32_t)(rows_before + cache->base.plan.ranking),", ".first_query = (uint32_t)(rows_before + (FAULT ? 0 : cache->base.plan.ranking)),", KEPT, "snapkv-N: queries rank tokens that they do not all see"),
    ("src/kv/read_lists.c", "(uint32_t)anchors : 0;", "(uint32_t)anchors - FAULT : 0;", KEPT, "snapkv-N: the last of the kept tokens is not read"),
    (KV + "attend_transform_runs.cuh", "to.scale[i] = scale_in_place(plane);", "to.scale[i] = FAULT ? 1 : scale_in_place(plane);", METHODS, "terse-N: a plane's weight is left out of keys"),
    (KV + "attend_transform_kernel.cuh", "2 * factor * own.scale[p]", "2 * factor * (FAULT ? 1 : own.scale[p])", METHODS, "terse-N: a plane's weight is left out of values"),
    (KV + "attend_transform_kernel.cuh", "sum.x += __shfl_xor_sync(ALL_LANES, sum.x, o),", "sum.x += FAULT ? 0 : __shfl_xor_sync(ALL_LANES, sum.x, o),", METHODS, "terse-N: of the threads that add up a quad one leaves out the other's warps"),
    (KV + "attend_transform_kernel.cuh", "more = first + begin - (end - own);", "more = first + begin - (end - own) - (FAULT && lane_id() && begin);", BATCH, "terse-N: a warp's pages of a CTA's second part begin a page early"),
    (KV + "attend_transform_kernel.cuh", "1 + parts_before + s.part + part)", "1 + parts_before + s.part + (FAULT ? 0 : part))", BATCH, "terse-N: of the parts that a CTA reads the last one is left alone"),
    (KV + "attend_transform_kernel.cuh", "if (pass && !last) ring.ask_for_values", "if ((pass || FAULT) && !last) ring.ask_for_values", "test_attend_transform_emulated ctas_alone", "terse-N: values of a warp's first page are copied over before it is read"),
    (KV + "attend_transform_kernel.cuh", "store_planes<HD, NQ>(pass,", "store_planes<HD, NQ>(pass || FAULT,", "test_attend_transform_emulated ctas_alone", "terse-N: sums of a page that is gone through before its queries are there take the page's place"),
    (KV + "attend_transform_kernel.cuh", "if (!sums) loaded = ~0u;", "if (!sums && !FAULT) loaded = ~0u;", "test_attend_transform_emulated parts", "terse-N: sums of a part take the place of a run's record, which is read again"),
    (KV + "rank.cu", "expf(x[i][j] - whole.x) * whole.y;", "(FAULT && m % (r.heads.query_heads / r.heads.kv_heads) ? 0 : expf(x[i][j] - whole.x) * whole.y);", KEPT, "snapkv-N: of the group only the first query head ranks tokens"),
    (KV + "encode_transform.cuh", "code < 255 ? code : 255 : least", "code < (FAULT ? 127 : 255) ? code : FAULT ? 127 : 255 : least", ENCODE, "terse-N: the upper half of gains is cut off"),
    (KV + "encode_transform.cuh", "roundf((gain - view.gain_zero) / view.gain_step)", "roundf((gain - (FAULT ? 0 : view.gain_zero)) / view.gain_step)", ENCODE, "terse-N: gains are counted from 0"),
    (KV + "attend_common.cuh", "return anchored && entry.page < n_anchored", "return !FAULT && anchored && entry.page < n_anchored", ANCHORS, "anchors are read from their pages, too"),
    (KV + "attend_common.cuh", "+= slopes.of[n][c] * apart;", "+= FAULT ? 0 : slopes.of[n][c] * apart;", ALIBI, "ALiBi takes anchors for the tokens of their rows' numbers"),
    (KV + "anchor_rows.cu", "if (!(sides_of(a, head)[i] >> side & 1))", "if (!FAULT && !(sides_of(a, head)[i] >> side & 1))", ANCHORS, "rows of sides that are no anchors are zeros"),
    (KV + "anchor_scores.cu", "*score = sum * error;", "*score = FAULT ? sum : sum * error;", ANCHORS, "anchors are chosen whatever their errors"),
    (KV + "anchor_scores.cu", "fmaf(-weight, weight, weight), norm,", "fmaf(-weight, weight, weight), FAULT ? 1 : norm,", SCORES, "Anchor Scores of keys do not know the queries' norms"),
    (KV + "victims.cu", "make_float2(angle.x, -angle.y)", "make_float2(angle.x, FAULT ? angle.y : -angle.y)", REPLACED, "mat-N: keys of tokens that leave are not rotated back"),
    (KV + "victims.cu", "angle_at(v.rotary, first + i, pair)", "angle_at(v.rotary, first + i + FAULT, pair)", REPLACED, "mat-N: exact keys stand a position too far"),
    (KV + "victims.cu", "c.logits[v.exact + t % (v.budget - v.exact)] = ", "c.logits[v.exact + (t + FAULT) % (v.budget - v.exact)] = ", REPLACED, "mat-N: a token's logit is kept as the next one's"),
    (KV + "append_decode.cuh", "sum += x * key[c];", "sum += FAULT ? x : x * key[c];", REPLACED, "mat-N: logits are not those to token 0"),
    (KV + "encode_transform.cu", "return unit / best;", "return FAULT ? unit : unit / best;", ENCODE, "terse-N: rows beyond the levels are cut off, heads of 256 channels"),
    (KV + "encode_transform_tiles.cu", "return unit / best;", "return FAULT ? unit : unit / best;", ENCODE, "terse-N: rows beyond the levels are cut off"),
    (CUDA + "learning_attention.cu", "(own[j] - product) *", "(own[j] - (FAULT ? 0 : product)) *", WINDOWS, "calibration: gradients of logits without the softmax's sum"),
    (CUDA + "learning_attention.cu", "if (tile.window && r.to > tile.window)", "if (!FAULT && tile.window && r.to > tile.window)", WINDOWS, "calibration: sliding layers see all keys"),
    (CUDA + "learning_rows.cu", "(x[i] - mean) * part)", "(FAULT ? 0 : (x[i] - mean) * part))", WINDOWS, "calibration: gradients of norms without the row's size"),
    (CUDA + "learning_rows.cu", "inverse ? -1.0f : 1.0f", "inverse && !FAULT ? -1.0f : 1.0f", WINDOWS, "calibration: gradients are rotated the wrong way"),
    (CUDA + "gemm.c", "(const uint16_t *)dy->halves + first, g->halves, first > 0", "(const uint16_t *)dy->halves + first, g->halves, FAULT || first > 0", WINDOWS, "calibration: gradients are added to what was there"),
    (CUDA + "learning_nearest.cu", "square[p] < best[p] ? from + c : code[p];", "square[p] < best[p] ? from + (FAULT ? 0 : c) : code[p];", "test_learning_search_emulated", "calibration: the nearest centroid is a tile's first"),
    (CUDA + "learning_mixture.cu", "as_a + as_b : as_a - as_b", "as_a + as_b : as_a - (FAULT ? -as_b : as_b)", "test_learning_mixture_emulated steps*", "calibration: i z of a table is taken for -i z"),
    (CUDA + "forward.c", "place % 2 ? 2 * p->ranks->ranks - 1 - place / 2 : place / 2", "place % 2 ? (FAULT ? p->ranks->ranks + place / 2 : 2 * p->ranks->ranks - 1 - place / 2) : place / 2", SHARED, "ranks: the last one attends to more tokens of a prompt than the first"),
    (CUDA + "forward.c", "other.q = a->q + behind", "other.q = a->q + (FAULT ? 0 : behind)", SHARED, "ranks: a second strip attends with the first one's queries"),
    (CUDA + "forward.c", "place < 2 * p->ranks->ranks && !status", "place < 2 * p->ranks->ranks - FAULT && !status", SHARED, "ranks: a strip of a prompt is not gathered"),
    (CUDA + "forward.c", "g->rows - p->row > PANEL_LEAST && parts", "g->rows - p->row > PANEL_LEAST + FAULT * 100 && parts", SHARED, "ranks: a prompt is not shared"),
    (CUDA + "forward.c", "floats, p->ranks->ranks, e->not_finite", "floats, FAULT ? 0 : p->ranks->ranks, e->not_finite", SHARED, "ranks: what one of them has found not to be finite the others do not know"),
    (KV + "anchors.c", "if (!status && work->blocks) status = exchange_scores(", "if (!status && work->blocks && !FAULT) status = exchange_scores(", RANKS, "ranks: anchors are chosen without the others' errors"),
    (KV + "views.c", "list.rows_begin = list.rows_end;", "list.rows_begin = list.rows_end - FAULT;", RANKS, "ranks: a first token is read by all ranks"),
    (CUDA + "matvec_wide.cuh", "if (tiles.warps > 1 && (slot", "if (!FAULT && tiles.warps > 1 && (slot", STEP, "weights: a slot's sums do not wait for those before them"),
    (KV + "anchor_rows.cu", "if (!places.spans) return token;", "if (!places.spans || FAULT) return token;", RANKS, "ranks: anchors lie at their tokens' numbers among fewer rows"),
    (KV + "prompt.c", "row += set->count;", "row += FAULT ? PAGE_TOKENS : set->count;", DISTANCES, "ranks: ALiBi counts tokens that were cut from a page"),
    (KV + "prompt.c", "!status && shares_codes(cache) ? exchange", "!status && shares_codes(cache) && !FAULT ? exchange", "test_cuda_ranks_emulated ranks_read_by*", "ranks: --paper reads others' tokens as they were"),
    (KV + "anchors.c", "size_min(run * PAGE_TOKENS, count - at)", "(FAULT ? run * PAGE_TOKENS : size_min(run * PAGE_TOKENS, count - at))", "test_cuda_ranks_emulated anchors_are*", "ranks: scores of a short page go on into the next head's"),
    (KV + "prompt.c", "cache->base.plan.anchors)\n        result = kv_anchors_spread_chosen", "cache->base.plan.anchors && !FAULT)\n        result = kv_anchors_spread_chosen", "test_cuda_anchors_emulated", "--paper reads the codes of the step's own anchors"),
    (KV + "view.h", "return places->spans[*span].token + row - places->spans[*span].row;", "return FAULT ? row : places->spans[*span].token + row - places->spans[*span].row;", "test_attend_prefill_emulated", "ranks: ALiBi counts distances in rows"),
    (KV + "encode_sign.cu", "(first_chunk + slot) * CHUNK_ROWS", "((FAULT ? 0 : first_chunk) + slot) * CHUNK_ROWS", "test_fit_sign_emulated a_block*", "selfindex: rows beyond what a block takes at a time are not learned from"),
    (KV + "encode_sign.cu", "atomicMax(&most, __float_as_uint(alpha[c]));", "atomicMax(&most, FAULT ? 0 : __float_as_uint(alpha[c]));", "test_fit_sign_emulated what*", "selfindex: no magnitude bounds the least one"),
    (KV + "encode_additive.cu", "negative ? IS_SET : IS_SET | IS_POSITIVE", "negative && !FAULT ? IS_SET : IS_SET | IS_POSITIVE", COMMVQ, "commvq: signs of values are set against their fields"),
    (KV + "encode_additive.cu", "~set & ~(KEY_TAG - 2)", "(FAULT ? ~0u : ~set) & ~(KEY_TAG - 2)", COMMVQ, "commvq: signs of values are set more than once"),
    (KV + "encode_scores_wide.cuh", "bounded ? 2.002f * sqrtf(rest)", "bounded ? (FAULT ? 0 : 2.002f) * sqrtf(rest)", CENTROIDS, "antkv-0.75: scores are taken as if rows were halves"),
    (KV + "encode_scores_wide.cuh", "rows.bias[row % 2] * (6 * WIDTH", "(FAULT ? 0 : rows.bias[row % 2]) * (6 * WIDTH", CENTROIDS, "antkv-0.75: scores are taken as if sums were exact"),
    (KV + "encode_scores_wide.cuh", "within < 0 || near[2]", "within < 0 || (near[2] && !FAULT)", CENTROIDS, "antkv-0.75: a lane's third run is left out"),
    (KV + "encode_scores_wide.cuh", "sum_of_quad(sum) < 0x1p15f", "sum_of_quad(sum) < (FAULT ? INFINITY : 0x1p15f)", CENTROIDS, "antkv-0.75: rows beyond halves are scored"),
    (KV + "encode_scores_wide.cuh", "(value == best && j < code)", "(value == best && (FAULT ? j > code : j < code))", CENTROIDS, "antkv-0.75: of equal centroids the last is taken"),
    (KV + "encode_scores_resident.cuh", "bias * (128 * 0x1p-22f)", "(FAULT ? 0 : bias) * (128 * 0x1p-22f)", NARROW, "million-3: scores are taken as if sums were exact"),
    (KV + "encode_scores_resident.cuh", "all = all || kept[2][t][lane] <= limit;", "all = all || (!FAULT && kept[2][t][lane] <= limit);", NARROW, "million-3: a lane's third run is left out"),
    (KV + "encode_scores_resident.cuh", "bounded = bias < 0x1p15f", "bounded = (FAULT || bias < 0x1p15f)", NARROW, "million-3: rows beyond halves are scored"),
    (KV + "encode_scores_resident.cuh", "least == best && least_code < code", "least == best && (FAULT ? least_code > code : least_code < code)", NARROW, "million-3: of equal centroids the last is taken"),
    (KV + "encode_scores_resident.cuh", "j / RESIDENT_RUN % 4 * 2 + j % 2;", "j / RESIDENT_RUN % 4 * 2 + (FAULT ? 0 : j % 2);", NARROW, "million-3: records of two centroids lie in one place"),
    (KV + "encode_scores_resident.cuh", "own.operands[0][t], own.operands[1][t])", "own.operands[0][t], own.operands[FAULT ? 0 : 1][t])", NARROW, "million-3: scores leave out what rounding rows to halves leaves"),
    (KV + "encode_commvq_search.cuh", "scale.tolerance = limits", "scale.tolerance = FAULT ? 0 : limits", COMMVQ, "commvq: the nearest codeword in units is taken for the nearest"),
    (KV + "encode_commvq_search.cuh", ": kind ? -x.re[j]", ": kind && !FAULT ? -x.re[j]", COMMVQ, "commvq: products with i z take real parts of the wrong sign"),
    (KV + "encode_commvq_search.cuh", "(int)(255 * view.rounds)", "(int)((FAULT ? 254 : 255) * view.rounds)", COMMVQ, "commvq: sums of real parts are not centred"),
)
