/* Runs a kernel at odd shapes without XLA, under a sanitizer or a clock: see native_shapes.py.
 *
 * Compiled with -DREAL, -DKERNEL=0 (attention_blocks.c), 1 (heads.c) or 2 (hidden_units.c), which is
 * included. Arguments: the number of shapes, and what they are drawn from; the word "time" and sizes;
 * or the word "ulps". Every buffer has its exact size on the heap, so that a step beyond it is seen; threads of a
 * pool take tasks at any time. Each call is repeated, and must give the same bits. */

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#if KERNEL == 0
#include "attention_blocks.c"
#elif KERNEL == 1
#include "papers/arda2026/heads.c"
#else
#include "papers/wu2023/hidden_units.c"
#endif

static int64_t threads = 3;
static uint64_t state = 1;

static uint64_t drawn(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static int64_t below(int64_t most) { return 1 + (int64_t)(drawn() % (uint64_t)most); }

/* ------------------------------------------------------------------- what XLA would provide */

static atomic_long running;

struct task {
    void (*work)(void *);
    void *data;
};

static void *worker(void *given)
{
    struct task task = *(struct task *)given;
    free(given);
    task.work(task.data);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

static XLA_FFI_Error *schedule(XLA_FFI_ThreadPool_Schedule_Args *args)
{
    struct task *task = malloc(sizeof *task);
    *task = (struct task){(void (*)(void *))args->task, args->data};
    pthread_t thread;
    atomic_fetch_add(&running, 1);
    pthread_create(&thread, NULL, worker, task);
    pthread_detach(thread);
    return NULL;
}

static XLA_FFI_Error *count_threads(XLA_FFI_ThreadPool_NumThreads_Args *args)
{
    *args->num_threads = threads;
    return NULL;
}

/* ------------------------------------------------------------------------------- one call */

#define MOST 12

typedef struct {
    XLA_FFI_Buffer buffers[MOST], *pointers[MOST];
    int64_t dims[MOST][5], sizes[MOST], count;
} Buffers;

static void add(Buffers *b, int64_t width, int64_t rank, const int64_t *dims)
{
    const int64_t k = b->count++;
    int64_t size = 1;
    for (int64_t i = 0; i < rank; i++) size *= b->dims[k][i] = dims[i];
    b->sizes[k] = size * width;
    b->buffers[k] = (XLA_FFI_Buffer){.rank = rank, .dims = b->dims[k],
                                     .data = malloc(b->sizes[k] + !b->sizes[k])};
    b->pointers[k] = b->buffers + k;
}

#define SHAPE(...) \
    (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }
#define REALS(b, ...) add(b, sizeof(REAL), SHAPE(__VA_ARGS__))
#define WORDS(b, ...) add(b, 4, SHAPE(__VA_ARGS__))

static void fill(Buffers *b, REAL size)
{
    for (int64_t k = 0; k < b->count; k++) {
        REAL *data = b->buffers[k].data;
        for (int64_t i = 0; i < b->sizes[k] / (int64_t)sizeof(REAL); i++)
            data[i] = size * ((REAL)(drawn() % 2000) / 1000 - 1);
    }
}

typedef XLA_FFI_Error *Handler(XLA_FFI_CallFrame *);

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now); /* others may be busy */
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Call twice; results but the last, which is room, must be equal and finite. */
static void call(Handler *handler, Buffers *in, Buffers *out, int repeats)
{
    XLA_FFI_Api api = {.XLA_FFI_ThreadPool_Schedule = schedule,
                       .XLA_FFI_ThreadPool_NumThreads = count_threads};
    XLA_FFI_CallFrame frame = {.api = &api};
    frame.args.args = (void **)in->pointers;
    frame.rets.rets = (void **)out->pointers;
    void *first[MOST];
    double best = INFINITY;
    for (int turn = 0; turn < repeats; turn++) {
        const double begun = seconds();
        if (handler(&frame)) exit(2);
        best = fmin(best, seconds() - begun);
        for (int64_t k = 0; k + 1 < out->count; k++) {
            const REAL *data = out->buffers[k].data;
            for (int64_t i = 0; i < out->sizes[k] / (int64_t)sizeof(REAL); i++)
                if (!isfinite(data[i])) exit(3);
            if (turn == 0) first[k] = memcpy(malloc(out->sizes[k] + 1), data, out->sizes[k]);
            if (memcmp(first[k], data, out->sizes[k])) exit(4);
        }
    }
    while (atomic_load(&running)) sched_yield();
    for (int64_t k = 0; k + 1 < out->count; k++) free(first[k]);
    for (int64_t k = 0; k < in->count; k++) free(in->buffers[k].data);
    for (int64_t k = 0; k < out->count; k++) free(out->buffers[k].data);
    if (repeats > 2) printf("%.1f us on one core\n", 1e6 * best);
}

/* --------------------------------------------------------------------------------- kernels */

#if KERNEL == 0
static void one(int64_t b, const int64_t *s, const int32_t *choices, int gradient, int repeats)
{
    const int64_t N = s[0], n = s[1], D = s[2], c = s[3], L = s[4], H = s[5], k = s[6], p = s[7];
    const int64_t m = s[8], r = s[9] ? p : 0;
    Buffers in = {}, out = {};
    REALS(&in, b, N, n, D), REALS(&in, b, N, n, c);
    REALS(&in, b, L, H, D, k), REALS(&in, b, L, H, D, k), REALS(&in, b, L, H, D, p);
    REALS(&in, b, L, D, m), REALS(&in, b, L, m, p), REALS(&in, b, r, c);
    REALS(&in, b, 6), WORDS(&in, b, 4);
    fill(&in, (REAL)0.3);
    for (int64_t i = 0; i < b; i++) memcpy((int32_t *)in.buffers[9].data + 4 * i, choices, 16);
    if (p != D) /* no residual without equal widths */
        for (int64_t i = 0; i < b; i++) ((REAL *)in.buffers[8].data)[6 * i + 2] = 0;
    REALS(&out, b);
    for (int w = 2; gradient && w < 8; w++)
        add(&out, sizeof(REAL), in.buffers[w].rank, in.buffers[w].dims);
    const int64_t sizes[] = {N, n, D, c, L, H, k, p, m, r};
    REALS(&out, b, attention_blocks_room(sizes));
    call(gradient ? attention_blocks : attention_blocks_value, &in, &out, repeats);
}

static void any(void)
{
    int64_t s[] = {below(9), below(19), below(21), 0, below(3), below(3), below(11), 0, 0, 1};
    if (drawn() % 2) { /* like song2024 */
        s[4] = 1, s[7] = s[3] = below(19), s[9] = 0;
    } else { /* like qin2025 */
        s[3] = below(5), s[7] = s[2], s[8] = below(70);
    }
    const int32_t choices[] = {drawn() % 2, drawn() % 2, drawn() % 2, drawn() % 2};
    one(below(3), s, choices, drawn() % 4 > 0, 2);
}

static void timed(const int64_t *s)
{
    const int32_t relu[] = {0, 1, 0, 0};
    one(1, s, relu, 1, 30);
}
#elif KERNEL == 1
static void one(int64_t b, int64_t N, int64_t T, int64_t d, int64_t m, int32_t phi, int gradient,
                int repeats)
{
    Buffers in = {}, out = {};
    REALS(&in, b, N, T, d), REALS(&in, b, N, d), REALS(&in, b, N), REALS(&in, b, m, d, d);
    REALS(&in, b, m, d), REALS(&in, b, m), REALS(&in, b, 1), WORDS(&in, b, 1);
    fill(&in, 1);
    for (int64_t i = 0; i < b; i++) ((int32_t *)in.buffers[7].data)[i] = phi;
    REALS(&out, b);
    if (gradient) REALS(&out, b, m, d, d), REALS(&out, b, m, d), REALS(&out, b, m);
    REALS(&out, b, heads_room(N, T, d, m));
    call(gradient ? heads : heads_value, &in, &out, repeats);
}

static void any(void)
{
    one(below(3), below(70), below(20), below(11), below(150), drawn() % 2, drawn() % 4 > 0, 2);
}

static void timed(const int64_t *s) { one(1, s[0], s[1], s[2], s[3], 0, 1, 15); }
#else
static void one(int64_t b, int64_t N, int64_t n, int64_t d, int64_t m, int what, int repeats)
{
    const int rows = what == 1, alone = what == 2;
    Buffers in = {}, out = {};
    REALS(&in, b, N, n, d), REALS(&in, b, m, d), REALS(&in, b, m, alone ? 1 : d);
    REALS(&in, b, rows ? m : N);
    if (!rows) REALS(&in, b, N, n, n);
    fill(&in, 1);
    if (rows)
        REALS(&out, b, N, m, d), REALS(&out, b, N, m), REALS(&out, b, N, n, d);
    else if (alone)
        REALS(&out, b, N);
    else
        REALS(&out, b, m, d), REALS(&out, b, N), REALS(&out, b, d, d);
    REALS(&out, b, (rows ? hidden_rows_room : alone ? hidden_value_room : hidden_units_room)(N, n, d, m));
    call(rows ? hidden_rows : alone ? hidden_value : hidden_units, &in, &out, repeats);
}

static void any(void) { one(below(3), below(40), below(19), below(40), below(90), drawn() % 3, 2); }
static void timed(const int64_t *s) { one(1, s[0], s[1], s[2], s[3], s[4], 15); }
#endif

/* Largest errors of the functions of a vector, in units in the last place. */
static double ulps(vec (*f)(vec), long double (*exact)(long double), double low, double high)
{
    double worst = 0;
    for (int64_t k = 0; k < 200000; k++) {
        const REAL x = (REAL)(low + (high - low) * (double)(drawn() % 1000000007) / 1e9);
        const long double want = exact(x);
        const REAL near = (REAL)want, got = f((vec){} + x)[0];
        const long double unit = DOUBLE ? nextafter(fabs((double)near), INFINITY) - fabs((double)near)
                                        : nextafterf(fabsf((float)near), INFINITY) - fabsf((float)near);
        worst = fmax(worst, (double)(fabsl(got - want) / unit));
    }
    return worst;
}

static vec exp_of(vec x) { return exponential(x); }
static vec tanh_of(vec x) { return tangent_h(x); }
static vec log_of(vec x) { return log_of_one_and(x); }

int main(int count, char **words)
{
    if (count > 2 && !strcmp(words[1], "time")) {
        int64_t sizes[10] = {};
        for (int k = 2; k < count && k < 12; k++) sizes[k - 2] = atoll(words[k]);
        threads = 1;
        timed(sizes);
        return 0;
    }
    if (count > 1 && !strcmp(words[1], "ulps")) {
        const double far = DOUBLE ? 700 : 85;
        printf("%.3f %.3f %.3f\n", ulps(exp_of, expl, -far, far), ulps(tanh_of, tanhl, -5, 5),
               ulps(log_of, log1pl, -0.5, 1));
        const REAL odd[] = {-INFINITY, INFINITY, NAN, 0};
        for (int k = 0; k < 4; k++) printf("%g ", (double)exp_of((vec){} + odd[k])[0]);
        return 0;
    }
    state = count > 2 ? strtoull(words[2], NULL, 10) | 1 : 1;
    for (int turn = 0; turn < 20; turn++) drawn();
    for (int64_t k = count > 1 ? atoll(words[1]) : 100; k > 0; k--) any();
    return 0;
}
