/* What the kernels in C share: vectors, products of small matrices, exponentials, threads of XLA.
 *
 * Compiled with REAL = float or double. Vectors are GCC's (Clang has them too), as wide as the
 * processor's. Arrays that kernels work on have rows of whole vectors, filled up with zeros. */

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#define LANES ((int64_t)(BYTES / sizeof(REAL)))
#define DOUBLE (sizeof(REAL) == 8)
#define INLINE static inline __attribute__((always_inline, unused))
#define HELPER static __attribute__((unused))

typedef REAL vec __attribute__((vector_size(BYTES), aligned(sizeof(REAL))));
typedef __typeof__((vec){} > (vec){}) bits;

HELPER int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }
HELPER int64_t up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

/* The length of rows that hold `count` numbers: an odd number of cache lines, if there are many, so
 * that a column of vectors does not fall on a few sets of the cache. */
HELPER int64_t row_length(int64_t count)
{
    const int64_t line = 64 / sizeof(REAL), length = up(count, LANES);
    if (length < 8 * line) return length;
    return up(length, line) / line % 2 ? up(length, line) : up(length, line) + line;
}

/* ----------------------------------------------------------------------------- small products */

#define TILE 6 /* rows whose sums are held in registers, times two vectors */

/* `rows` rows and `many` vectors of out (+)= left right. */
INLINE void product_tile(REAL *out, int64_t out_row, const REAL *left, int64_t row, int64_t column,
                         const REAL *right, int64_t right_row, int64_t count, int add, int rows,
                         int many)
{
    vec s[TILE][2] = {};
    if (add)
        for (int a = 0; a < rows; a++)
            for (int b = 0; b < many; b++) s[a][b] = ((const vec *)(out + a * out_row))[b];
    for (int64_t k = 0; k < count; k++, left += column, right += right_row) {
        vec x[2];
        for (int b = 0; b < many; b++) x[b] = ((const vec *)right)[b];
        for (int a = 0; a < rows; a++)
            for (int b = 0; b < many; b++) s[a][b] += left[a * row] * x[b];
    }
    for (int a = 0; a < rows; a++)
        for (int b = 0; b < many; b++) ((vec *)(out + a * out_row))[b] = s[a][b];
}

/* A column of tiles; a row is one or the column is, so that the compiler knows one of them. */
INLINE void product_column(REAL *out, int64_t out_row, int64_t rows, const REAL *left, int64_t row,
                           int64_t column, const REAL *right, int64_t right_row, int64_t count,
                           int add, int many)
{
    for (; rows >= TILE; rows -= TILE, out += TILE * out_row, left += TILE * row)
        product_tile(out, out_row, left, row, column, right, right_row, count, add, TILE, many);
#define REST(n) \
    case n: \
        product_tile(out, out_row, left, row, column, right, right_row, count, add, n, many); \
        break;
    switch (rows) { REST(1) REST(2) REST(3) REST(4) REST(5) }
#undef REST
}

INLINE void product_any(REAL *out, int64_t out_row, int64_t rows, int64_t columns,
                        const REAL *left, int64_t row, int64_t column, const REAL *right,
                        int64_t right_row, int64_t count, int add)
{
    int64_t c = 0;
    for (; c + 2 * LANES <= columns; c += 2 * LANES)
        product_column(out + c, out_row, rows, left, row, column, right + c, right_row, count, add,
                       2);
    if (c < columns)
        product_column(out + c, out_row, rows, left, row, column, right + c, right_row, count, add,
                       1);
}

/* out = left right, or out += left right. Left has an entry every `column` numbers and a row every
 * `row` numbers, one of which is 1; `columns`, filled up to whole vectors, are those of out. */
HELPER void product(REAL *out, int64_t out_row, int64_t rows, int64_t columns, const REAL *left,
                    int64_t row, int64_t column, const REAL *right, int64_t right_row,
                    int64_t count, int add)
{
    if (column == 1)
        product_any(out, out_row, rows, columns, left, row, 1, right, right_row, count, add);
    else
        product_any(out, out_row, rows, columns, left, 1, column, right, right_row, count, add);
}

/* out (columns x rows, a row of out every `out_row`) = the transpose of in; the rest of each row of
 * out is filled up with zeros to whole vectors. */
HELPER void transpose(REAL *out, int64_t out_row, const REAL *in, int64_t in_row, int64_t rows,
                      int64_t columns)
{
    for (int64_t j = 0; j < columns; j++) {
        int64_t i = 0;
        for (; i < rows; i++) out[j * out_row + i] = in[i * in_row + j];
        for (; i < up(rows, LANES); i++) out[j * out_row + i] = 0;
    }
}

/* ------------------------------------------------------------------------------- exponentials */

INLINE vec choose(bits where, vec one, vec other)
{
    return (vec)((where & (bits)one) | (~where & (bits)other));
}

INLINE vec larger(vec one, vec other) { return choose(one > other, one, other); }
INLINE vec absolute(vec x) { return larger(x, -x); }

/* exp(x) = scale (1 + p) with |x - k log 2| <= log(2) / 2 and p its Taylor sum without 1. The sum
 * is cut below half a unit in the last place. Beyond what a normal number can be: 0 or infinite. */
INLINE vec exp_parts(vec x, vec *scale)
{
    const REAL magic = DOUBLE ? (REAL)0x1.8p52 : (REAL)0x1.8p23; /* its last bits count ones */
    const REAL high = DOUBLE ? (REAL)0x1.62e42fefa0000p-1 : (REAL)0x1.63p-1;
    const REAL low = DOUBLE ? (REAL)0x1.cf79abc9e3b3ap-40 : (REAL)-0x1.bd0106p-13;
    const REAL over[] = {(REAL)(1.0 / 6227020800), (REAL)(1.0 / 479001600), (REAL)(1.0 / 39916800),
                         (REAL)(1.0 / 3628800),    (REAL)(1.0 / 362880),    (REAL)(1.0 / 40320),
                         (REAL)(1.0 / 5040),       (REAL)(1.0 / 720),       (REAL)(1.0 / 120),
                         (REAL)(1.0 / 24),         (REAL)(1.0 / 6),         (REAL)0.5};
    const vec shifted = x * (REAL)1.4426950408889634 + magic, k = shifted - magic;
    const vec r = (x - k * high) - k * low;
    vec p = (vec){} + over[DOUBLE ? 0 : 6];
    for (int n = DOUBLE ? 1 : 7; n < 12; n++) p = p * r + over[n];
    const bits one = (bits)((vec){} + 1);
    *scale = (vec)(one + ((bits)shifted << (DOUBLE ? 52 : 23)));
    return p * (r * r) + r;
}

#define LEAST_EXP (DOUBLE ? (REAL)-708.0 : (REAL)-87.0)
#define MOST_EXP (DOUBLE ? (REAL)709.0 : (REAL)88.0)

INLINE vec exponential(vec x)
{
    vec scale;
    const vec p = exp_parts(x, &scale), none = {};
    const vec found = scale * p + scale;
    const vec above = choose(x > MOST_EXP, none + (REAL)__builtin_inf(), found);
    return choose(x < LEAST_EXP, none, choose(x == x, above, x));
}

/* exp(x) - 1 for x <= 0, as good relative to itself. */
INLINE vec below_one(vec x)
{
    vec scale;
    const vec least = (vec){} - 40, p = exp_parts(larger(x, least), &scale);
    return choose(x == x, scale * p + (scale - 1), x);
}

INLINE vec tangent_h(vec x)
{
    const vec e = below_one(-2 * absolute(x)), found = -e / (e + 2);
    return choose(x < 0, -found, found);
}

/* log(1 + u) for -1/2 <= u <= 1: 2 artanh(u / (2 + u)), by its series. */
INLINE vec log_of_one_and(vec u)
{
    const vec s = u / (u + 2), t = s * s;
    vec p = {};
    for (int n = DOUBLE ? 33 : 15; n >= 1; n -= 2) p = p * t + (REAL)(2.0 / n);
    return p * s;
}

/* ---------------------------------------------------------------------------- threads of XLA */

typedef void Task(void *problem, int64_t number);

typedef struct {
    Task *task;
    void *problem;
    int64_t count;
    atomic_long next, done, users;
} Work;

HELPER void take_tasks(Work *work)
{
    int64_t number;
    while ((number = atomic_fetch_add(&work->next, 1)) < work->count) {
        work->task(work->problem, number);
        atomic_fetch_add(&work->done, 1);
    }
}

HELPER void leave(Work *work)
{
    if (atomic_fetch_sub(&work->users, 1) == 1) free(work);
}

HELPER void help(void *data)
{
    take_tasks(data);
    leave(data);
}

HELPER void forget(const XLA_FFI_Api *api, XLA_FFI_Error *error)
{
    XLA_FFI_Error_Destroy_Args args = {.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE,
                                       .error = error};
    api->XLA_FFI_Error_Destroy(&args);
}

HELPER void ask_for_help(XLA_FFI_CallFrame *frame, Work *work)
{
    int64_t threads = 1;
    XLA_FFI_ThreadPool_NumThreads_Args count = {
        .struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE,
        .ctx = frame->ctx,
        .num_threads = &threads};
    XLA_FFI_Error *none = frame->api->XLA_FFI_ThreadPool_NumThreads(&count);
    if (none) { /* no pool: alone */
        forget(frame->api, none);
        return;
    }
    for (int64_t k = 1; k < threads && k < work->count; k++) {
        XLA_FFI_ThreadPool_Schedule_Args task = {
            .struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE,
            .ctx = frame->ctx,
            .task = help,
            .data = work};
        atomic_fetch_add(&work->users, 1);
        none = frame->api->XLA_FFI_ThreadPool_Schedule(&task);
        if (none) {
            forget(frame->api, none);
            leave(work);
            return;
        }
    }
}

HELPER XLA_FFI_Error *failure(XLA_FFI_CallFrame *frame, const char *message)
{
    XLA_FFI_Error_Create_Args args = {.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
                                      .message = message,
                                      .errc = XLA_FFI_Error_Code_RESOURCE_EXHAUSTED};
    return frame->api->XLA_FFI_Error_Create(&args);
}

/* Do tasks 0 to count - 1. They are taken by whichever threads of XLA's pool are free; the caller
 * takes them too, so it never waits for work that has not begun. */
HELPER XLA_FFI_Error *share_out(XLA_FFI_CallFrame *frame, Task *task, void *problem, int64_t count)
{
    if (count == 1) {
        task(problem, 0);
        return NULL;
    }
    Work *work = malloc(sizeof(Work));
    if (!work) return failure(frame, "no memory to share out work");
    work->task = task;
    work->problem = problem;
    work->count = count;
    atomic_init(&work->next, 0);
    atomic_init(&work->done, 0);
    atomic_init(&work->users, 1);
    ask_for_help(frame, work);
    take_tasks(work);
    for (int64_t turn = 0; atomic_load(&work->done) < count; turn++) /* what others began */
        if (turn > 1000) sched_yield();
    leave(work);
    return NULL;
}

/* Whether XLA only asks for the version that this is made for; then it is told. */
HELPER int only_asked(XLA_FFI_CallFrame *frame)
{
    XLA_FFI_Extension_Base *asked = frame->extension_start;
    if (!asked || asked->type != XLA_FFI_Extension_Metadata) return 0;
    XLA_FFI_Metadata *about = ((XLA_FFI_Metadata_Extension *)asked)->metadata;
    about->api_version.major_version = XLA_FFI_API_MAJOR;
    about->api_version.minor_version = XLA_FFI_API_MINOR;
    return 1;
}

HELPER XLA_FFI_Buffer *argument(XLA_FFI_CallFrame *frame, int64_t number)
{
    return ((XLA_FFI_Buffer **)frame->args.args)[number];
}

HELPER REAL *result(XLA_FFI_CallFrame *frame, int64_t number)
{
    return ((XLA_FFI_Buffer **)frame->rets.rets)[number]->data;
}

/* Leading axes that are a batch: those beyond the `rank` last ones of an argument. */
HELPER int64_t batch_of(XLA_FFI_CallFrame *frame, int64_t number, int64_t rank)
{
    const XLA_FFI_Buffer *buffer = argument(frame, number);
    int64_t batch = 1;
    for (int64_t k = 0; k < buffer->rank - rank; k++) batch *= buffer->dims[k];
    return batch;
}
