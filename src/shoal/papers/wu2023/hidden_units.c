/* The hidden units of wu2023 in one pass over the samples: of a step of training, and of a tangent
 * kernel. The formulas are in hidden_units.py; tests compare the two.
 *
 * With masks m_ik = [W_k . u_i > 0] and g_i = sum of m_ik A_k over units:
 *
 *   hidden_units  in:  X (N, n, d), W (m, d), A (m, d), y (N), B (N, n, n); u_i = sum of B_ij x_j
 *                 out: P (m, d), P_k = sum of m_ik e_n u_i;  e (N), e_n = sum of g_i . u_i - y_n;
 *                      R (d, d) = sum of x_i p_ij x_j^T, with t_ij = 2 e_n g_i . x_j and
 *                      p_ij = B_ij (t_ij - sum of B_ik t_ik);  room to work in
 *   hidden_rows   in:  U, W, A, w (m)
 *                 out: J (N, m, d), J_nk = w_k S_nk with S_nk = sum of m_ik u_i;
 *                      F (N, m), F_nk = W_k . S_nk;
 *                      g (N, n, d);  room to work in
 *
 *   hidden_value  in:  X, W, a (m) with A_k = a_k W_k, y, B
 *                 out: e;  room to work in
 *
 * Leading axes that all of them share are a batch. Compiled with REAL = float or double.
 *
 * Why by hand: XLA writes the N n x m array of hidden units to memory, reads it, writes the mask
 * and reads that twice, each time by a product with one short side that it does not do well. Here
 * a block of samples passes through all three products while its mask stays in the cache of one
 * core. In the first two products a vector holds tokens, in the third the entries of u. What comes
 * before and after, u from x and R from g, is products of matrices of ten rows, which XLA does one
 * after the other on one core; here it is done while they are at hand.
 *
 * How the work is divided depends on shapes alone, and sums are made in a fixed order: the result
 * does not depend on threads. */

#include "native.h"

#define TOKENS (2 * LANES) /* two vectors; the last of a block may be one */
#define UNITS 6            /* whose sums are held in registers, times two vectors */
#define DIMS 5
#define CACHE (5 << 18)  /* bytes that a block may take */
#define PER_SHARE 3e7    /* operations, roughly */
#define MOST_SHARES 8

/* One problem of the batch, and how it is divided. */
typedef struct {
    int64_t N, n, d, m;
    int64_t shares, samples, rows; /* samples of a block, and tokens in it, filled up */
    int64_t short_units, short_dims, long_dims, long_tokens; /* m, d and n, filled up */
    const REAL *X, *B, *y, *plain; /* X: or U; y: or w; plain: W as it was given */
    REAL *W, *A;                   /* rearranged */
    REAL *P, *e, *R;               /* or J, F and g */
    REAL *sums, *blocks; /* of every share: its part of P and then of R, and room for a block */
} Problem;

/* mask = [W u > 0] for `many` vectors of tokens and UNITS units. */
INLINE void make_mask(const REAL *w, int64_t d, const REAL *u, int64_t rows, REAL *mask, int many)
{
    const vec one = (vec){} + 1;
    vec h[UNITS][2] = {};
    for (int64_t j = 0; j < d; j++, w += UNITS) {
        const vec *x = (const vec *)(u + j * rows);
        for (int a = 0; a < UNITS; a++)
            for (int b = 0; b < many; b++) h[a][b] += w[a] * x[b];
    }
    for (int a = 0; a < UNITS; a++)
        for (int b = 0; b < many; b++)
            ((vec *)mask)[a * many + b] = (vec)((h[a][b] > 0) & (bits)one);
}

/* DIMS entries of g_i = sum over units of mask times A, for `many` vectors of tokens. */
INLINE void apply_mask(const REAL *a, int64_t units, const REAL *mask, REAL *g, int64_t rows,
                       int many)
{
    vec s[DIMS][2] = {};
    for (int64_t k = 0; k < units; k++, a += DIMS) {
        const vec *x = (const vec *)mask + k * many;
        for (int j = 0; j < DIMS; j++)
            for (int b = 0; b < many; b++) s[j][b] += a[j] * x[b];
    }
    for (int j = 0; j < DIMS; j++)
        for (int b = 0; b < many; b++) ((vec *)(g + j * rows))[b] = s[j][b];
}

/* A block of samples, and what is known of it. */
typedef struct {
    int64_t tokens, rows;
    REAL *mask; /* for every TOKENS tokens: units x TOKENS */
    REAL *u;    /* d x rows */
    REAL *g;    /* short_dims x rows */
    REAL *v;    /* rows x long_dims: u_i, and later e_n u_i */
    REAL *x;    /* rows x long_dims: x_i */
    REAL *rest; /* rows, and UNITS x long_dims; then what one sample needs */
} Block;

/* P_k += sum over tokens of mask times v, for UNITS units and `many` vectors of entries from j. */
INLINE void add_products(const Problem *p, const Block *b, int64_t token, int64_t last, int64_t k,
                         int64_t j, REAL *P, int many)
{
    vec s[UNITS][2];
    for (int a = 0; a < UNITS; a++)
        for (int c = 0; c < many; c++) s[a][c] = ((vec *)(P + a * p->long_dims + j))[c];
    while (token < last) {
        const int64_t from = token / TOKENS * TOKENS; /* tokens whose masks lie together */
        const int64_t width = b->rows - from < TOKENS ? LANES : TOKENS;
        const int64_t stop = least(last, from + width);
        const REAL *mask = b->mask + from * p->short_units + k * width - from;
        for (; token < stop; token++) {
            const vec *v = (const vec *)(b->v + token * p->long_dims + j);
            for (int a = 0; a < UNITS; a++)
                for (int c = 0; c < many; c++) s[a][c] += mask[a * width + token] * v[c];
        }
    }
    for (int a = 0; a < UNITS; a++)
        for (int c = 0; c < many; c++) ((vec *)(P + a * p->long_dims + j))[c] = s[a][c];
}

static Block laid_out(const Problem *p, int64_t samples, REAL *room)
{
    const int64_t tokens = samples * p->n, rows = up(tokens, LANES);
    REAL *mask = room, *u = mask + rows * p->short_units, *g = u + rows * p->d;
    REAL *v = g + rows * p->short_dims, *x = v + rows * p->long_dims;
    memset(v, 0, sizeof(REAL) * rows * p->long_dims * 2);
    return (Block){tokens, rows, mask, u, g, v, x, x + rows * p->long_dims};
}

/* Masks and g of a block whose v is u. */
static void begin(const Problem *p, const Block *b)
{
    const int64_t d = p->d, rows = b->rows;
    const int64_t units = p->short_units, pairs = rows / TOKENS * TOKENS;
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < rows; i++) b->u[j * rows + i] = b->v[i * p->long_dims + j];
    for (int64_t k = 0; k < units; k += UNITS) {
        const REAL *w = p->W + k * d;
        for (int64_t i = 0; i < pairs; i += TOKENS)
            make_mask(w, d, b->u + i, rows, b->mask + i * units + k * TOKENS, 2);
        if (pairs < rows)
            make_mask(w, d, b->u + pairs, rows, b->mask + pairs * units + k * LANES, 1);
    }
    for (int64_t j = 0; j < p->short_dims; j += DIMS) {
        const REAL *a = p->A + j * units;
        REAL *g = b->g + j * rows;
        for (int64_t i = 0; i < pairs; i += TOKENS)
            apply_mask(a, units, b->mask + i * units, g + i, rows, 2);
        if (pairs < rows) apply_mask(a, units, b->mask + pairs * units, g + pairs, rows, 1);
    }
}

/* `many` rows of a product, one vector of them: out += sum over j of left[j * apart] times row j of
 * right; the next row of left begins `step` further on. */
INLINE void add_rows(REAL *out, int64_t dims, const REAL *left, int64_t step, int64_t apart,
                     const REAL *right, int64_t stride, int64_t count, int many)
{
    vec s[DIMS];
    for (int a = 0; a < many; a++) s[a] = *(vec *)(out + a * dims);
    for (int64_t j = 0; j < count; j++) {
        const vec x = *(vec *)(right + j * stride);
        for (int a = 0; a < many; a++) s[a] += left[a * step + j * apart] * x;
    }
    for (int a = 0; a < many; a++) *(vec *)(out + a * dims) = s[a];
}

/* A product of small matrices, added to out (rows x dims). */
static void add_product(REAL *out, int64_t rows, int64_t dims, const REAL *left, int64_t step,
                        int64_t apart, const REAL *right, int64_t stride, int64_t count)
{
    for (int64_t c = 0; c < dims; c += LANES) {
        int64_t a = 0;
        for (; a + DIMS <= rows; a += DIMS)
            add_rows(out + a * dims + c, dims, left + a * step, step, apart, right + c, stride,
                     count, DIMS);
        for (; a < rows; a++)
            add_rows(out + a * dims + c, dims, left + a * step, step, apart, right + c, stride,
                     count, 1);
    }
}

static int64_t sample_room(const Problem *p)
{
    return p->n * (p->long_dims + 2 * p->long_tokens);
}

/* R += a sample's part, transposed (d x long_dims). In t and b the query i runs along a row, so
 * that sums over keys are sums of rows. Vectors of g may reach beyond a sample, and at the end into
 * v, which follows g: those lanes are not used. */
static void add_scores(const Problem *p, const Block *block, int64_t sample, const REAL *B,
                       REAL twice_e, REAL *R, REAL *room)
{
    const int64_t n = p->n, dims = p->long_dims, length = p->long_tokens;
    const REAL *x = block->x + sample * n * dims;
    REAL *z = room, *t = z + n * dims, *b = t + n * length;
    memset(room, 0, sizeof(REAL) * sample_room(p));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) b[j * length + i] = B[i * n + j];
    add_product(t, n, length, x, dims, 1, block->g + sample * n, block->rows, p->d);
    for (int64_t c = 0; c < length; c += LANES) {
        vec mean = {};
        for (int64_t j = 0; j < n; j++) {
            vec *of = (vec *)(t + j * length + c);
            *of *= twice_e * *(vec *)(b + j * length + c);
            mean += *of;
        }
        for (int64_t j = 0; j < n; j++)
            *(vec *)(t + j * length + c) -= *(vec *)(b + j * length + c) * mean;
    }
    add_product(z, n, dims, t, length, 1, x, dims, n);
    add_product(R, p->d, dims, x, 1, dims, z, dims, n);
}

static int64_t per_token(const Problem *p)
{
    return p->short_units + p->d + p->short_dims + 2 * p->long_dims + 1;
}

static int64_t block_room(const Problem *p)
{
    return p->rows * per_token(p) + UNITS * p->long_dims + sample_room(p);
}

/* Sums of mask times v over some tokens, for UNITS units, added to P (UNITS x long_dims). */
static void add_units(const Problem *p, const Block *b, int64_t token, int64_t last, int64_t k,
                      REAL *P)
{
    int64_t j = 0;
    for (; j + 2 * LANES <= p->long_dims; j += 2 * LANES)
        add_products(p, b, token, last, k, j, P, 2);
    if (j < p->long_dims) add_products(p, b, token, last, k, j, P, 1);
}

static void step_block(const Problem *p, int64_t first, int64_t samples, REAL *P, REAL *R,
                       REAL *room)
{
    const int64_t n = p->n, d = p->d, dims = p->long_dims;
    const REAL *X = p->X + first * n * d, *B = p->B + first * n * n;
    const Block b = laid_out(p, samples, room);
    REAL *f = b.rest, *rest = f + b.rows + UNITS * dims;
    for (int64_t i = 0; i < b.tokens; i++)
        for (int64_t j = 0; j < d; j++) b.x[i * dims + j] = X[i * d + j];
    for (int64_t s = 0; s < samples; s++)
        add_product(b.v + s * n * dims, n, dims, B + s * n * n, n, 1, b.x + s * n * dims, dims, n);
    begin(p, &b);
    memset(f, 0, sizeof(REAL) * b.rows);
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < b.rows; i++) f[i] += b.g[j * b.rows + i] * b.u[j * b.rows + i];
    for (int64_t s = 0; s < samples; s++) {
        REAL e = -p->y[first + s];
        for (int64_t i = s * n; i < (s + 1) * n; i++) e += f[i];
        p->e[first + s] = e;
        for (int64_t i = s * n * dims; i < (s + 1) * n * dims; i++) b.v[i] *= e;
        add_scores(p, &b, s, B + s * n * n, 2 * e, R, rest);
    }
    for (int64_t k = 0; k < p->short_units; k += UNITS)
        add_units(p, &b, 0, b.tokens, k, P + k * dims);
}

static void rows_block(const Problem *p, int64_t first, int64_t samples, REAL *room)
{
    const int64_t n = p->n, d = p->d, m = p->m;
    const REAL *U = p->X + first * n * d;
    const Block b = laid_out(p, samples, room);
    REAL *g = p->R + first * n * d, *sums = b.rest + b.rows;
    for (int64_t i = 0; i < b.tokens; i++)
        memcpy(b.v + i * p->long_dims, U + i * d, sizeof(REAL) * d);
    begin(p, &b);
    for (int64_t i = 0; i < b.tokens; i++)
        for (int64_t j = 0; j < d; j++) g[i * d + j] = b.g[j * b.rows + i];
    for (int64_t s = 0; s < samples; s++) {
        REAL *J = p->P + (first + s) * m * d, *F = p->e + (first + s) * m;
        for (int64_t k = 0; k < m; k++, J += d) {
            const int64_t a = k % UNITS;
            if (a == 0) {
                memset(sums, 0, sizeof(REAL) * UNITS * p->long_dims);
                add_units(p, &b, s * n, (s + 1) * n, k, sums);
            }
            const REAL *S = sums + a * p->long_dims, *w = p->plain + k * d;
            REAL f[4] = {}; /* four sums, since each addition waits for the last */
            for (int64_t j = 0; j < d; j++) J[j] = p->y[k] * S[j];
            int64_t j = 0;
            for (; j + 4 <= d; j += 4)
                for (int c = 0; c < 4; c++) f[c] += w[j + c] * S[j + c];
            for (; j < d; j++) f[0] += w[j] * S[j];
            F[k] = (f[0] + f[1]) + (f[2] + f[3]);
        }
    }
}

static int64_t sums_room(const Problem *p) { return (p->short_units + p->d) * p->long_dims; }

/* Samples are dealt out in runs of nearly equal length. */
static void step_share(const Problem *p, int64_t share)
{
    const int64_t last = p->N * (share + 1) / p->shares;
    REAL *P = p->sums + share * sums_room(p), *R = P + p->short_units * p->long_dims;
    REAL *room = p->blocks + share * block_room(p);
    memset(P, 0, sizeof(REAL) * sums_room(p));
    for (int64_t from = p->N * share / p->shares; from < last; from += p->samples)
        step_block(p, from, least(p->samples, last - from), P, R, room);
}

static void rows_share(const Problem *p, int64_t share)
{
    const int64_t last = p->N * (share + 1) / p->shares;
    REAL *room = p->blocks + share * block_room(p);
    for (int64_t from = p->N * share / p->shares; from < last; from += p->samples)
        rows_block(p, from, least(p->samples, last - from), room);
}

static void step_task(void *problems, int64_t number)
{
    const Problem *p = (Problem *)problems + number / ((Problem *)problems)->shares;
    step_share(p, number % p->shares);
}

static void rows_task(void *problems, int64_t number)
{
    const Problem *p = (Problem *)problems + number / ((Problem *)problems)->shares;
    rows_share(p, number % p->shares);
}

/* ------------------------------------------------------------------------ division of the work */

static Problem divided(int64_t N, int64_t n, int64_t d, int64_t m)
{
    Problem p = {.N = N, .n = n, .d = d, .m = m};
    p.short_units = up(m, UNITS);
    p.short_dims = up(d, DIMS);
    p.long_dims = up(d, LANES);
    p.long_tokens = up(n, LANES);
    p.shares = 1;
    while (p.shares < MOST_SHARES && 2 * p.shares <= N && p.shares * PER_SHARE < 6.0 * N * n * d * m)
        p.shares *= 2;
    const int64_t most = up(N, p.shares) / p.shares; /* samples of a share */
    int64_t fewest = INT64_MAX; /* tokens, filled up, if blocks have so many samples */
    for (int64_t samples = 1; samples <= most; samples++) {
        const int64_t rows = up(samples * n, LANES);
        if (samples > 1 && rows * per_token(&p) * (int64_t)sizeof(REAL) > CACHE) break;
        const int64_t all = most / samples * rows + up(most % samples * n, LANES);
        if (all <= fewest) fewest = all, p.samples = samples, p.rows = rows;
    }
    return p;
}

/* W as d rows of UNITS numbers for every UNITS units. */
static void units_first(const Problem *p, const REAL *W)
{
    const int64_t m = p->m, d = p->d;
    memset(p->W, 0, sizeof(REAL) * p->short_units * d);
    for (int64_t k = 0; k < m; k += UNITS)
        for (int64_t a = 0; a < least(UNITS, m - k); a++)
            for (int64_t j = 0; j < d; j++) p->W[k * d + j * UNITS + a] = W[(k + a) * d + j];
}

/* The same, and A as rows of DIMS for every DIMS entries. */
static void rearrange(const Problem *p, const REAL *W, const REAL *A)
{
    const int64_t m = p->m, d = p->d;
    units_first(p, W);
    memset(p->A, 0, sizeof(REAL) * p->short_units * p->short_dims);
    for (int64_t j = 0; j < d; j += DIMS)
        for (int64_t k = 0; k < m; k++)
            memcpy(p->A + j * p->short_units + k * DIMS, A + k * d + j,
                   sizeof(REAL) * least(DIMS, d - j));
}

static void add_up(const Problem *p)
{
    const int64_t size = sums_room(p), dims = p->long_dims, d = p->d;
    REAL *sum = p->sums;
    for (int64_t s = 1; s < p->shares; s++)
        for (int64_t j = 0; j < size; j += LANES)
            *(vec *)(sum + j) += *(vec *)(sum + s * size + j);
    for (int64_t k = 0; k < p->m; k++) memcpy(p->P + k * d, sum + k * dims, sizeof(REAL) * d);
    sum += p->short_units * dims;
    for (int64_t k = 0; k < d; k++)
        for (int64_t j = 0; j < d; j++) p->R[j * d + k] = sum[k * dims + j];
}

/* ------------------------------------------------------------------------------- errors alone */

/* f += sum over UNITS units of a max(W u, 0) for `many` vectors of tokens. */
INLINE void add_active(const REAL *w, const REAL *a, int64_t d, const REAL *u, int64_t rows, vec *f,
                       int many)
{
    const vec none = {};
    vec h[UNITS][2] = {};
    for (int64_t j = 0; j < d; j++, w += UNITS) {
        const vec *x = (const vec *)(u + j * rows);
        for (int k = 0; k < UNITS; k++)
            for (int b = 0; b < many; b++) h[k][b] += w[k] * x[b];
    }
    for (int k = 0; k < UNITS; k++) /* what is not a number is not hidden */
        for (int b = 0; b < many; b++) f[b] += a[k] * choose(h[k][b] <= 0, none, h[k][b]);
}

static int64_t value_block_room(const Problem *p)
{
    return p->rows * (p->d + 2 * p->long_dims + 1);
}

static void value_block(const Problem *p, int64_t first, int64_t samples, REAL *room)
{
    const int64_t n = p->n, d = p->d, dims = p->long_dims, rows = up(samples * n, LANES);
    const REAL *X = p->X + first * n * d, *B = p->B + first * n * n;
    REAL *u = room, *f = u + rows * d, *v = f + rows, *x = v + rows * dims;
    memset(v, 0, sizeof(REAL) * rows * dims * 2);
    for (int64_t i = 0; i < samples * n; i++) memcpy(x + i * dims, X + i * d, sizeof(REAL) * d);
    for (int64_t s = 0; s < samples; s++)
        add_product(v + s * n * dims, n, dims, B + s * n * n, n, 1, x + s * n * dims, dims, n);
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < rows; i++) u[j * rows + i] = v[i * dims + j];
    for (int64_t i = 0; i < rows; i += TOKENS) {
        vec sum[2] = {};
        for (int64_t k = 0; k < p->short_units; k += UNITS)
            if (i + TOKENS <= rows)
                add_active(p->W + k * d, p->A + k, d, u + i, rows, sum, 2);
            else
                add_active(p->W + k * d, p->A + k, d, u + i, rows, sum, 1);
        for (int b = 0; b < 2 && i + b * LANES < rows; b++) *(vec *)(f + i + b * LANES) = sum[b];
    }
    for (int64_t s = 0; s < samples; s++) {
        REAL e = -p->y[first + s];
        for (int64_t i = s * n; i < (s + 1) * n; i++) e += f[i];
        p->e[first + s] = e;
    }
}

static void value_task(void *problems, int64_t number)
{
    const Problem *p = (Problem *)problems + number / ((Problem *)problems)->shares;
    const int64_t share = number % p->shares, last = p->N * (share + 1) / p->shares;
    REAL *room = p->blocks + share * value_block_room(p);
    for (int64_t from = p->N * share / p->shares; from < last; from += p->samples)
        value_block(p, from, least(p->samples, last - from), room);
}

static int64_t value_room(const Problem *p)
{
    return p->short_units * (p->d + 1) + p->shares * value_block_room(p);
}

int64_t hidden_value_room(int64_t N, int64_t n, int64_t d, int64_t m)
{
    const Problem p = divided(N, n, d, m);
    return value_room(&p);
}

XLA_FFI_Error *hidden_value(XLA_FFI_CallFrame *frame)
{
    if (only_asked(frame)) return NULL;
    const int64_t batch = batch_of(frame, 0, 3), axes = argument(frame, 0)->rank - 3;
    const int64_t *shape = argument(frame, 0)->dims + axes;
    const Problem plan = divided(shape[0], shape[1], shape[2], argument(frame, 1)->dims[axes]);
    const int64_t N = plan.N, n = plan.n, d = plan.d, m = plan.m;
    Problem *problems = malloc(batch * sizeof(Problem));
    if (!problems) return failure(frame, "no memory for the hidden units");
    for (int64_t b = 0; b < batch; b++) {
        Problem *p = problems + b;
        *p = plan;
        p->X = (REAL *)argument(frame, 0)->data + b * N * n * d;
        p->y = (REAL *)argument(frame, 3)->data + b * N;
        p->B = (REAL *)argument(frame, 4)->data + b * N * n * n;
        p->e = result(frame, 0) + b * N;
        p->W = result(frame, 1) + b * value_room(p);
        p->A = p->W + plan.short_units * d;
        p->blocks = p->A + plan.short_units;
        units_first(p, (REAL *)argument(frame, 1)->data + b * m * d);
        memset(p->A, 0, sizeof(REAL) * plan.short_units);
        memcpy(p->A, (REAL *)argument(frame, 2)->data + b * m, sizeof(REAL) * m);
    }
    XLA_FFI_Error *error = share_out(frame, value_task, problems, batch * plan.shares);
    free(problems);
    return error;
}

/* Numbers that one problem needs to work in; of rows there is nothing to add up. */
static int64_t room_of(const Problem *p, int rows)
{
    return p->short_units * (p->d + p->short_dims) +
           p->shares * (block_room(p) + (rows ? 0 : sums_room(p)));
}

int64_t hidden_units_room(int64_t N, int64_t n, int64_t d, int64_t m)
{
    const Problem p = divided(N, n, d, m);
    return room_of(&p, 0);
}

int64_t hidden_rows_room(int64_t N, int64_t n, int64_t d, int64_t m)
{
    const Problem p = divided(N, n, d, m);
    return room_of(&p, 1);
}

static XLA_FFI_Error *run(XLA_FFI_CallFrame *frame, int rows)
{
    if (only_asked(frame)) return NULL;
    XLA_FFI_Buffer **in = (XLA_FFI_Buffer **)frame->args.args;
    XLA_FFI_Buffer **out = (XLA_FFI_Buffer **)frame->rets.rets;
    const int64_t axes = in[0]->rank - 3, batch = batch_of(frame, 0, 3);
    const int64_t *shape = in[0]->dims + axes;
    const Problem plan = divided(shape[0], shape[1], shape[2], in[1]->dims[axes]);
    const int64_t N = plan.N, units = plan.m * plan.d, tokens = N * plan.n * plan.d;
    Problem *problems = malloc(batch * sizeof(Problem));
    if (!problems) return failure(frame, "no memory for the hidden units");
    for (int64_t b = 0; b < batch; b++) {
        Problem *p = problems + b;
        *p = plan;
        p->X = (REAL *)in[0]->data + b * tokens;
        p->B = rows ? NULL : (REAL *)in[4]->data + b * N * plan.n * plan.n;
        p->plain = (REAL *)in[1]->data + b * units;
        p->y = (REAL *)in[3]->data + b * (rows ? plan.m : N);
        p->P = (REAL *)out[0]->data + b * (rows ? N * units : units);
        p->e = (REAL *)out[1]->data + b * (rows ? N * plan.m : N);
        p->R = (REAL *)out[2]->data + b * (rows ? tokens : plan.d * plan.d);
        p->W = (REAL *)out[3]->data + b * room_of(p, rows);
        p->A = p->W + plan.short_units * plan.d;
        p->blocks = p->A + plan.short_units * plan.short_dims;
        p->sums = p->blocks + plan.shares * block_room(p);
        rearrange(p, p->plain, (REAL *)in[2]->data + b * units);
    }
    XLA_FFI_Error *error =
        share_out(frame, rows ? rows_task : step_task, problems, batch * plan.shares);
    if (!rows && !error)
        for (int64_t b = 0; b < batch; b++) add_up(problems + b);
    free(problems);
    return error;
}

XLA_FFI_Error *hidden_units(XLA_FFI_CallFrame *frame) { return run(frame, 0); }
XLA_FFI_Error *hidden_rows(XLA_FFI_CallFrame *frame) { return run(frame, 1); }
