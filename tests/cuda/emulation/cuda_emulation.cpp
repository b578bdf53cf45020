/* Blocks of fibers, one after another. */
#include <mutex> /* before macros that it would not understand */

#include "cuda_emulation.h"

#include "emulated_capture.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <vector>

#undef min
#undef max

emulated_thread *emulated_now;
dim3 emulated_grid, emulated_block;
alignas(1024) char emulated_shared_memory[EMULATED_SHARED_BYTES];

#define THREADS_MOST 1024
/* Multiples of a large power of two would have all stacks share a few sets of the processor's caches. */
#define STACK_BYTES (((size_t)256 << 10) + 5 * 64)

struct pending_copy {
    char *to;
    const void *from;
    int bytes;
    bool valid;
    unsigned group;
};

struct fiber : emulated_thread {
    void *stack_pointer; /* where it stopped */
    unsigned number;
    unsigned groups; /* of copies, that were committed */
    std::vector<pending_copy> copies;
    uint32_t mask; /* of the lanes that it meets */
    fiber *behind; /* waits at the same numbered barrier */
    emulated_together *together;
};

/* Sets of lanes. Those that can run are alive and wait for nobody. */
struct warp {
    uint32_t alive, running, met, in_barrier;
    void *given[32]; /* by lanes that have come to where they meet */
};

/* A numbered_barrier has threads that came to it since it last let them go on. */
struct numbered_barrier {
    unsigned come;
    fiber *waiting; /* the last of them */
};

static numbered_barrier numbered[16];
static std::vector<fiber *> fibers; /* kept for the next blocks */
static std::vector<warp> warps;
static unsigned n_threads, n_alive, n_waiting;
static bool vote_any, vote_all, voted_any, voted_all; /* of the vote that goes on, of the last one */
static const std::function<void()> *work;
static void *scheduler_stack_pointer;

/* ---- Switching: callee-saved registers on the stack, then the other's stack. */

#if !defined(__x86_64__)
#error the emulation of CUDA kernels switches stacks on x86-64 only
#endif
extern "C" void emulated_switch(void **from, void *to);
asm(".text\n.globl emulated_switch\n.type emulated_switch,@function\n"
    "emulated_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n");

static fiber *current() { return static_cast<fiber *>(emulated_now); }

/* The stack of the next thread of the block, from warp w's lanes `rest` on, that can run, which becomes the current one; behind the last that of the
 * scheduler, which begins again. */
static void *next_stack(size_t w, uint32_t rest) {
    while (!rest) {
        if (++w >= warps.size()) return scheduler_stack_pointer;
        rest = warps[w].running;
    }
    fiber *f = fibers[32 * w + (unsigned)__builtin_ctz(rest)];
    emulated_now = f;
    return f->stack_pointer;
}

static void yield() {
    fiber *f = current();
    const size_t w = f->number / 32;
    emulated_switch(&f->stack_pointer, next_stack(w, warps[w].running & ~((2u << f->lane) - 1)));
}

/* Lets the threads go on that wait for all of the block, if all that are alive wait. */
static bool end_barrier() {
    if (n_waiting < n_alive) return false;
    for (warp &w : warps) {
        w.running |= w.in_barrier;
        w.in_barrier = 0;
    }
    n_waiting = 0;
    voted_any = vote_any, voted_all = vote_all;
    vote_any = false, vote_all = true;
    return true;
}

/* Lets the lanes of the mask go on, if all of them that are alive have come. */
static bool end_meeting(warp *w, uint32_t mask, emulated_together *together) {
    const uint32_t wanted = mask & w->alive;
    if ((w->met & wanted) != wanted) return false;
    if (together) {
        void *given[32];
        for (unsigned i = 0; i < 32; i++) given[i] = wanted >> i & 1 ? w->given[i] : NULL;
        together(given);
    }
    w->met &= ~wanted;
    w->running |= wanted;
    return true;
}

/* Others may have waited for this one only. */
static void end_of_thread() {
    fiber *f = current();
    warp *w = &warps[f->number / 32];
    n_alive--;
    w->alive &= ~(1u << f->lane);
    w->running &= ~(1u << f->lane);
    if (n_alive) end_barrier();
    for (unsigned i = 0; i < 32; i++) {
        const fiber *other = w->met >> i & 1 ? fibers[f->number - f->lane + i] : NULL;
        if (other) end_meeting(w, other->mask, other->together);
    }
    yield();
    abort();
}

static void begin_of_thread() {
    (*work)();
    end_of_thread();
}

/* The stacks of all threads, in huge pages: as each thread has its own, the processor knows the places of few small ones. */
static char *make_stacks() {
    const size_t bytes = THREADS_MOST * STACK_BYTES;
    void *stacks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) abort();
    madvise(stacks, bytes, MADV_HUGEPAGE);
    return (char *)stacks;
}

static void prepare(fiber *f, unsigned number) {
    static char *const stacks = make_stacks();
    void **top = (void **)(stacks + (number + 1) * STACK_BYTES - 16);
    *--top = NULL; /* the stack is as after a call */
    *--top = (void *)begin_of_thread;
    for (int i = 0; i < 6; i++) *--top = NULL;
    f->stack_pointer = top;
    f->number = number;
    f->lane = number % 32;
    f->thread = make_uint3(number % emulated_block.x, number / emulated_block.x % emulated_block.y,
                           number / emulated_block.x / emulated_block.y);
    f->groups = 0;
    f->copies.clear();
}

static void run_block(uint3 block, size_t shared) {
    static size_t written = sizeof emulated_shared_memory; /* by the last block, at most */
    memset(emulated_shared_memory, 0xff, shared > written ? shared : written);
    written = shared;
    for (unsigned i = 0; i < n_threads; i++) {
        prepare(fibers[i], i);
        fibers[i]->block = block;
    }
    for (unsigned w = 0; w < warps.size(); w++) {
        unsigned lanes = n_threads - 32 * w < 32 ? n_threads - 32 * w : 32;
        warps[w].alive = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
        warps[w].running = warps[w].alive;
        warps[w].met = warps[w].in_barrier = 0;
    }
    n_alive = n_threads;
    n_waiting = 0;
    for (numbered_barrier &b : numbered) b = numbered_barrier();
    vote_any = false;
    vote_all = true;
    while (n_alive) {
        void *first = next_stack(0, warps[0].running);
        if (first == scheduler_stack_pointer) {
            fprintf(stderr, "emulated kernel: %u threads of block (%u, %u, %u) wait for ever\n", n_alive, block.x, block.y, block.z);
            abort();
        }
        emulated_switch(&scheduler_stack_pointer, first);
    }
}

void emulated_run(dim3 grid, dim3 block, size_t shared, cudaStream_t stream, std::function<void()> body) {
    if (emulated_captures(stream, [=]() { emulated_run(grid, block, shared, stream, body); })) return;
    if (shared > EMULATED_SHARED_BYTES || block.x * block.y * block.z > THREADS_MOST || !grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535) {
        emulated_fail(cudaErrorInvalidConfiguration);
        return;
    }
    static std::mutex running; /* threads, which may be ranks or have streams of their own, launch one after another */
    const std::lock_guard<std::mutex> lock(running);
    emulated_grid = grid;
    emulated_block = block;
    n_threads = block.x * block.y * block.z;
    while (fibers.size() < n_threads) fibers.push_back(new fiber());
    warps.assign((n_threads + 31) / 32, warp());
    work = &body;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) run_block(make_uint3(x, y, z), shared);
    emulated_now = NULL;
}

/* ---- Waiting */

void emulated_barrier() {
    fiber *f = current();
    warp *w = &warps[f->number / 32];
    w->in_barrier |= 1u << f->lane;
    w->running &= ~(1u << f->lane);
    n_waiting++;
    if (!end_barrier()) yield();
}

void emulated_arrive_at_barrier(unsigned number, unsigned threads) {
    numbered_barrier *b = &numbered[number];
    if (++b->come < threads) return;
    for (fiber *f = b->waiting; f; f = f->behind) warps[f->number / 32].running |= 1u << f->lane;
    *b = numbered_barrier();
}

void emulated_wait_at_barrier(unsigned number, unsigned threads) {
    fiber *f = current();
    numbered_barrier *b = &numbered[number];
    f->behind = b->waiting;
    b->waiting = f;
    warps[f->number / 32].running &= ~(1u << f->lane);
    emulated_arrive_at_barrier(number, threads);
    if (!(warps[f->number / 32].running >> f->lane & 1)) yield();
}

bool emulated_vote(bool all, bool value) {
    vote_any |= value;
    vote_all &= value;
    emulated_barrier();
    return all ? voted_all : voted_any; /* the next vote ends when this thread, too, has come there */
}

void emulated_meet(uint32_t mask, void *own, emulated_together *together) {
    fiber *f = current();
    warp *w = &warps[f->number / 32];
    const uint32_t bit = 1u << f->lane;
    if (!(mask & bit)) {
        fprintf(stderr, "emulated kernel: lane %u waits with the mask %#x, which has it not\n", f->lane, mask);
        abort();
    }
    f->mask = mask;
    f->together = together;
    w->given[f->lane] = own;
    w->met |= bit;
    w->running &= ~bit;
    if (!end_meeting(w, mask, together)) yield();
}

/* ---- Copies */

void emulated_copy_async(char *to, const void *from, int bytes, bool valid) {
    current()->copies.push_back({to, from, bytes, valid, current()->groups});
}

void emulated_commit_copies() { current()->groups++; }

void emulated_wait_copies(int left) {
    fiber *f = current();
    size_t kept = 0;
    for (const pending_copy &copy : f->copies) {
        if (copy.group + (unsigned)left >= f->groups) {
            f->copies[kept++] = copy;
        } else if (copy.valid) {
            memcpy(copy.to, copy.from, (size_t)copy.bytes);
        } else {
            memset(copy.to, 0, (size_t)copy.bytes);
        }
    }
    f->copies.resize(kept);
}
